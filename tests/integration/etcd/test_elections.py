"""`etcdctl elect`, which uses Go's concurrency.Election, and holdfast elect one leader, and both report it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.support.etcd import shared
from tests.support.etcd.servers import Server, etcdctl
from tests.support.processes import eventually


@pytest.fixture
def prefix() -> str:
    return shared.fresh_url().partition("prefix=")[2].replace("%2F", "/")


@pytest.fixture
def election(server: Server, prefix: str, open_client: OpenClient) -> holdfast.Election:
    return open_client(server.url, prefix=prefix).election("scheduler")


@pytest.fixture
def etcdctl_leader(server: Server, prefix: str) -> Iterator[subprocess.Popen[str]]:
    """A process of etcdctl that is a candidate. It ends with the test."""
    with etcdctl(server, "elect", f"{prefix}scheduler", "their-proposal") as process:
        yield process
        process.terminate()
        process.communicate(timeout=20)


def test_a_leader_of_etcdctl_is_reported_and_blocks_ours_until_it_resigns(
    election: holdfast.Election, etcdctl_leader: subprocess.Popen[str]
) -> None:
    assert etcdctl_leader.stdout is not None
    assert etcdctl_leader.stdout.readline(), "etcdctl prints its key when it is the leader"
    changes = election.observe(every=0.05)

    leader = next(changes)
    assert leader is not None
    assert (leader.agent, leader.term > 0) == ("another program", True)
    assert election.campaign(timeout=0) is None

    etcdctl_leader.terminate()
    with election as lease:
        assert lease.fence > leader.term
        eventually(lambda: (change := next(changes)) is not None and change.term == lease.fence)


def test_our_leader_is_visible_to_etcdctl_and_blocks_its_candidate(
    server: Server, prefix: str, election: holdfast.Election, request: pytest.FixtureRequest
) -> None:
    with election as lease, etcdctl(server, "elect", "--listen", f"{prefix}scheduler") as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline().startswith(f"{prefix}scheduler/"), "the listener prints our key"
        candidate = request.getfixturevalue("etcdctl_leader")
        eventually(lambda: len(server.keys(f"{prefix}scheduler/")) == 2)
        leader = election.leader()
        assert leader is not None
        assert leader.term == lease.fence
        listener.terminate()
        listener.communicate(timeout=20)

    assert candidate.stdout.readline().startswith(f"{prefix}scheduler/")
