"""Three servers: holders, waiters and new leases when a server is killed, paused or restarted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.guarantees import Exclusion
from tests.integration.conftest import OpenClient
from tests.support.intervals import Turn, assert_exclusive, report, turns_of
from tests.support.nats.servers import Server, Trio
from tests.support.processes import WorkerPool, eventually, now

WORKER = Path(__file__).parents[2] / "support" / "worker.py"
PROCESSES = 4
SECONDS = 18.0


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(str(WORKER)) as pool:
        yield pool


def acquired(client: holdfast.Client, name: str, ttl: float = 20) -> holdfast.Lease:
    lease: holdfast.Lease | None = None

    def is_granted() -> bool:
        nonlocal lease
        try:
            lease = client.lock(name, ttl=ttl).acquire(timeout=5)
        except holdfast.BackendError:  # an election takes longer than a request
            return False
        return lease is not None

    eventually(is_granted, within=60)
    assert lease is not None
    return lease


@pytest.mark.parametrize("ends", [Server.kill, Server.stop], ids=["killed", "paused"])
def test_a_lease_survives_the_leader_of_its_bucket(
    trio: Trio, bucket: str, open_client: OpenClient, ends: Callable[[Server], None]
) -> None:
    holder, other = open_client(f"{trio.url}?bucket={bucket}"), open_client(f"{trio.url}?bucket={bucket}")
    lease = acquired(holder, "kept", ttl=60)
    assert holder.guarantees.exclusion is Exclusion.CONSENSUS

    ends(trio.leader(bucket))

    def is_renewed() -> bool:
        try:
            lease.renew()
        except holdfast.BackendError:
            return False
        return True

    eventually(is_renewed, within=50)
    assert other.lock("kept").acquire(timeout=0) is None
    lease.release()
    after = acquired(other, "kept")
    assert after.fence > lease.fence
    after.release()


def test_no_lock_is_granted_and_a_lease_is_lost_without_a_majority(
    trio: Trio, bucket: str, open_client: OpenClient
) -> None:
    holder, other = open_client(f"{trio.url}?bucket={bucket}"), open_client(f"{trio.url}?bucket={bucket}")
    lease = acquired(holder, "a", ttl=6)
    leader = trio.leader(bucket)
    for server in trio.servers:
        if server is not leader:
            server.kill()

    with pytest.raises(holdfast.BackendError):
        other.lock("b", ttl=6).acquire(timeout=1)
    assert lease.wait_lost(15)

    trio.heal()
    after = acquired(other, "a")
    assert after.fence > lease.fence
    after.release()


def test_leases_and_fences_survive_a_restart_of_all_servers(trio: Trio, bucket: str, open_client: OpenClient) -> None:
    url = f"{trio.url}?bucket={bucket}"
    lease = acquired(open_client(url), "a", ttl=300)

    for server in trio.servers:
        server.kill()
    trio.heal()

    other = open_client(url)

    def is_seen() -> bool:
        try:
            return [holder.fence for holder in other.inspect("a").holders] == [lease.fence]
        except holdfast.BackendError:
            return False

    eventually(is_seen, within=60)
    lease.release()
    after = acquired(other, "a")
    assert after.fence > lease.fence
    after.release()


def test_a_client_of_a_paused_server_uses_another_server(trio: Trio, bucket: str, open_client: OpenClient) -> None:
    client = open_client(f"{trio.url}?bucket={bucket}")
    acquired(client, "warm").release()
    leader = trio.leader(bucket)
    others = [server for server in trio.servers if server is not leader]
    paused = open_client(f"nats://{others[0].address},{leader.address}?bucket={bucket}")
    acquired(paused, "warm").release()

    others[0].stop()

    acquired(paused, "a").release()


@pytest.mark.slow
def test_processes_exclude_each_other_while_servers_are_killed_and_paused(
    trio: Trio, bucket: str, pool: WorkerPool, open_client: OpenClient
) -> None:
    url = f"{trio.url}?bucket={bucket}"
    acquired(open_client(url), "warm").release()
    workers = pool.start_many(PROCESSES, url)
    start = now() + 0.5
    for worker in workers:
        worker.send("stubborn_turns", lock="one", start=start, seconds=SECONDS, hold=0.01)

    faults = Counter[str]()
    while now() < start + SECONDS - 8 or not faults["paused"]:
        # A majority is left at every moment, and the leader is among those that fail.
        leader = trio.leader(bucket)
        if faults["killed"] <= faults["paused"]:
            leader.kill()
            faults["killed"] += 1
            time.sleep(1)
            leader.start()
        else:
            leader.stop()
            faults["paused"] += 1
            time.sleep(3)
            leader.resume()
        trio.await_answer()
    turns: list[Turn] = []
    problems = Counter[str]()
    for worker in workers:
        answer = worker.receive(within=120)
        turns += turns_of([answer["turns"]])
        problems.update({problem.partition(":")[0]: number for problem, number in answer["problems"].items()})
    turns.sort(key=lambda turn: turn.acquired)

    report(f"{len(turns)} leases of {PROCESSES} processes in {SECONDS:g} s; {dict(faults)}; errors: {dict(problems)}")
    assert faults["killed"] >= 1
    assert faults["paused"] >= 1
    assert_exclusive(turns)
    assert turns[-1].acquired > start + SECONDS / 2, "leases are granted after the first faults"
