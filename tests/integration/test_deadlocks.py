"""Two processes that take two locks in opposite orders: one gets WouldDeadlock, and the other one continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import OpenClient
from tests.support.etcd import shared as etcd
from tests.support.postgresql import shared as postgresql
from tests.support.processes import Refused, WorkerPool, eventually
from tests.support.redis import shared as redis

WORKER = Path(__file__).parents[1] / "support" / "worker.py"
STORES: dict[str, Callable[[Path], str]] = {
    "redis": lambda _: redis.fresh_url(),
    "postgresql": lambda _: postgresql.fresh_url(),
    "etcd": lambda _: etcd.fresh_url(),
    "sqlite": lambda folder: f"sqlite://{folder}/locks.db",
}


@pytest.mark.parametrize("store", STORES)
def test_the_younger_of_two_processes_in_a_deadlock_gets_an_error_and_the_other_continues(
    store: str, tmp_path: Path, open_client: OpenClient
) -> None:
    url = STORES[store](tmp_path)
    client = open_client(url)
    with WorkerPool(str(WORKER)) as pool:
        elder, younger = pool.start_many(2, url)
        elder.call("acquire", lock="a", detect_deadlocks=True)
        younger.call("acquire", lock="b", detect_deadlocks=True)

        elder.send("acquire", lock="b", detect_deadlocks=True)
        eventually(lambda: bool(client.inspect("b").waiters))
        with pytest.raises(Refused) as refused:
            younger.call("acquire", lock="a", detect_deadlocks=True)

        assert refused.value.kind == "WouldDeadlock"
        assert str(refused.value).count("waits for") == 2
        younger.call("release", lock="b")
        assert elder.receive()["acquired"]
