"""Deployments and a lock that are wrong on purpose: `holdfast verify` has to find each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from packages.lab.scenarios.scenario import Deployment, Scenario
from tests.support.etcd import servers as etcd
from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import RedlockServers
from tests.support.redis.servers import Server
from tests.support.server_process import running


@contextlib.contextmanager
def _forgetful(folder: Path) -> Iterator[Deployment]:
    with running(Server(main_binary(), folder)) as server:

        def restart() -> Iterator[None]:
            server.restart()
            yield

        yield Deployment(server.url, {"restart": restart})


@contextlib.contextmanager
def _hasty_redlock(folder: Path) -> Iterator[Deployment]:
    with running(RedlockServers(main_binary(), folder)) as nodes:

        def restart() -> Iterator[None]:
            for server in nodes.servers[:3]:
                server.restart()
            yield

        yield Deployment(nodes.url(quarantine="no"), {"restart": restart})


@contextlib.contextmanager
def _etcd(folder: Path) -> Iterator[Deployment]:
    with running(etcd.Trio(folder)) as trio:
        yield Deployment(trio.url)


SCENARIOS = (
    Scenario(
        "redis-without-persistence",
        "Redis without persistence; the server restarts and has lost all locks (`restart`)",
        _forgetful,
        group="broken",
        must_break=("exclusion",),
    ),
    Scenario(
        "redlock-without-quarantine",
        "Redlock with `quarantine=no` on five Redis without persistence; three of them restart (`restart`)",
        _hasty_redlock,
        group="broken",
        must_break=("exclusion",),
    ),
    Scenario(
        "etcd-broken-adapter",
        "etcd, and an adapter whose holder trusts a lease after its ttl (`tests/support/broken_locks.py`)",
        _etcd,
        group="broken",
        options=("--adapter", "tests.support.broken_locks:WithoutDeadline", "--only", "pause"),
        must_break=("exclusion",),
    ),
)
