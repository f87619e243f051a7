"""Rolling restarts of etcd, ZooKeeper and NATS: one member after the other ends and is started again."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packages.lab.scenarios.scenario import Deployment, Fault, Scenario
from tests.support.etcd import servers as etcd
from tests.support.nats import servers as nats
from tests.support.server_process import ServerGroup, running
from tests.support.zookeeper import ensembles as zookeeper


def _in_turn(group: ServerGroup[Any], number: signal.Signals) -> Fault:
    """The next member receives a signal that ends it, and is started again. The leader is among them."""
    turns = 0

    def fault() -> Iterator[None]:
        nonlocal turns
        server = group.servers[turns % len(group.servers)]
        turns += 1
        server.end_with(number)
        yield
        server.spawn()
        group.await_answer()

    return fault


def _faults(group: ServerGroup[Any]) -> dict[str, Fault]:
    return {"restart": _in_turn(group, signal.SIGTERM), "crash": _in_turn(group, signal.SIGKILL)}


@contextlib.contextmanager
def _etcd(folder: Path) -> Iterator[Deployment]:
    with running(etcd.Trio(folder)) as trio:
        yield Deployment(trio.url, _faults(trio))


@contextlib.contextmanager
def _zookeeper(folder: Path) -> Iterator[Deployment]:
    with running(zookeeper.Ensemble(folder)) as ensemble:
        yield Deployment(ensemble.url(), _faults(ensemble))


@contextlib.contextmanager
def _nats(folder: Path) -> Iterator[Deployment]:
    with running(nats.Trio(folder)) as trio:
        yield Deployment(trio.url, _faults(trio))


_TEXT = "three members; one after the other is shut down (`restart`) or killed (`crash`), and started again"

SCENARIOS = (
    Scenario("etcd-rolling-restart", f"etcd, {_TEXT}", _etcd),
    Scenario("zookeeper-rolling-restart", f"ZooKeeper, {_TEXT}", _zookeeper),
    Scenario("nats-rolling-restart", f"NATS, {_TEXT}", _nats),
)
