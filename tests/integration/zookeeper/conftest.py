"""Servers and clients for the tests of ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server_process import running
from tests.support.zookeeper import shared
from tests.support.zookeeper.ensembles import ProxiedEnsemble
from tests.support.zookeeper.servers import Server


@pytest.fixture
def server() -> Server:
    """The server that all tests share."""
    return shared.server()


@pytest.fixture
def url() -> str:
    """The shared server, with a root node for this test alone."""
    return shared.fresh_url()


@pytest.fixture(scope="package")  # the start takes seconds of processor time, idle members almost none
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedEnsemble]:
    """An ensemble with long timeouts between members, so that a member that is cut off continues to answer."""
    with running(ProxiedEnsemble(tmp_path_factory.mktemp("ensemble"), sync_limit=50)) as started:
        yield started


@pytest.fixture
def ensemble(three: ProxiedEnsemble) -> ProxiedEnsemble:
    """The ensemble, with all members running and connected."""
    three.heal()
    return three
