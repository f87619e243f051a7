"""Hazard: the model answers differently from a real etcd, and proves nothing. Both have to return the same answers."""

from __future__ import annotations

import http.client
import json
import random
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.backends.etcd.port import LeaseNotFound, Watch
from holdfast.backends.etcd.protocol.leases import WAITER_TTL
from holdfast.backends.etcd.protocol.messages import (
    absent,
    all_in_order,
    created_at,
    delete,
    empty,
    first,
    get,
    last,
    leased_to,
    modified_at,
    none_after,
    none_before,
    put,
    txn,
    watch_request,
)
from holdfast.core.locks import LockOptions
from holdfast_lab.checking import Promises, judge
from holdfast_lab.checking import history as h
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.faults import CALM
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.mutants.etcd import NoPolling
from holdfast_lab.sim.run import Plan, quiet, run
from holdfast_lab.sim.scenarios import SmallWorld
from holdfast_lab.sim.servers.etcd.server import EtcdServer
from holdfast_lab.sim.servers.etcd.store import Store
from holdfast_lab.sim.workload import USUAL
from tests.support.etcd.servers import Server
from tests.support.server_process import folder_in_memory, running

STEPS = 400
KEYS = [b"l/%d" % number for number in range(6)] + [b"l", b"m", b"%gone/x", b"%mark/l"]
RANGES = [(b"l/", b"l0"), (b"l", b"m"), (b"%gone/", b"%gone0"), (b"\0", b"\0")]


@pytest.fixture
def real() -> Iterator[Server]:
    """A server whose first revision is 1."""
    with folder_in_memory() as folder, running(Server(folder)) as server:
        yield server


class Requests:
    """Random requests of our protocols, on few keys, so that they conflict."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)  # noqa: S311 (a test)
        self._leases: list[int] = []

    def next(self, revision: int) -> tuple[str, dict[str, Any]]:
        draw = self._draw
        lease = draw.choice([*self._leases, 999_999]) if self._leases else 999_999
        match draw.randrange(12):
            case 0:
                self._leases.append(draw.randrange(1, 1 << 40))
                return "lease/grant", {"ID": str(self._leases[-1]), "TTL": str(draw.randrange(1000, 2000))}
            case 1:
                return "lease/keepalive", {"ID": str(lease)}
            case 2:
                return ("lease/revoke", {"ID": str(lease)}) if draw.random() < 0.3 else self._range(revision)
            case 3:
                return self._range(revision)
            case 4:
                return "kv/deleterange", delete(draw.choice(KEYS))["request_delete_range"]
            case _:
                branch = [self._operation(revision, lease) for _ in range(draw.randrange(4))]
                changed = [change[kind]["key"] for change in branch for kind in change if kind != "request_range"]
                if len(changed) > len(set(changed)):
                    branch = branch[:1]  # etcd refuses to change one key twice
                compares = [self._compare(revision) for _ in range(draw.randrange(3))]
                return "kv/txn", txn(compares, branch, [self._poll(revision)])

    def _range(self, revision: int) -> tuple[str, dict[str, Any]]:
        return "kv/range", self._poll(revision)["request_range"]

    def _compare(self, revision: int) -> dict[str, Any]:
        draw = self._draw
        key, (start, end), at = draw.choice(KEYS), draw.choice(RANGES), draw.randrange(1, revision + 3)
        return draw.choice(
            [
                absent(key),
                empty(start, end),
                created_at(key, at),
                modified_at(key, draw.choice([0, at])),
                leased_to(key, draw.choice([0, *self._leases])),
                none_before(start, end, at),
                none_after(start, end, at),
            ]
        )

    def _poll(self, revision: int) -> dict[str, Any]:
        draw = self._draw
        key, (start, end), until = (
            draw.choice(KEYS),
            draw.choice(RANGES),
            draw.choice([0, draw.randrange(1, revision + 2)]),
        )
        bare = draw.random() < 0.5
        return draw.choice(
            [
                get(key, keys_only=bare),
                first(start, end),
                last(start, end, draw.randrange(1, 4), until=until),
                all_in_order(start, end, until=until, keys_only=bare),
            ]
        )

    def _operation(self, revision: int, lease: int) -> dict[str, Any]:
        draw = self._draw
        key = draw.choice(KEYS)
        match draw.randrange(4):
            case 0:
                return self._poll(revision)
            case 1:
                return delete(key)
            case _:
                value = draw.choice([b"", b"value", bytes([draw.randrange(256)])])
                return put(key, value, lease if draw.random() < 0.8 else 0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extra) for seed in (1, 2))])
def test_the_model_and_a_real_etcd_return_the_same_answers(real: Server, seed: int) -> None:
    store, requests = Store(), Requests(seed)

    for number in range(STEPS):
        method, message = requests.next(store.revision)
        try:
            expected: Any = plain(store.call(method, message, now=0.0))
        except LeaseNotFound as error:
            expected = str(error)
        answer = real.call(method, **message)

        assert (answer["message"] if "message" in answer else plain(answer)) == expected, (number, method, message)

    assert store.revision > STEPS / 10
    changes = [(change.revision, change.key, change.is_delete) for change in store.changes]
    assert watch_events(real, len(changes)) == changes


def test_the_model_and_a_real_etcd_return_the_same_answers_after_a_restore(real: Server) -> None:
    store, requests = Store(), Requests(7)

    def compare(number: int) -> None:
        method, message = requests.next(store.revision)
        try:
            expected: Any = plain(store.call(method, message, now=0.0))
        except LeaseNotFound as error:
            expected = str(error)
        answer = real.call(method, **message)
        assert (answer["message"] if "message" in answer else plain(answer)) == expected, (number, method, message)

    for number in range(60):
        compare(number)
    real.save_snapshot()
    snapshot = store.snapshot()
    before = real.call("kv/range", key="AA==")["header"]
    for number in range(60):
        compare(number)
    real.restore_snapshot()
    store.restore(snapshot, now=0.0)
    after = real.call("kv/range", key="AA==")["header"]
    for number in range(100):
        compare(number)

    assert (after["cluster_id"], after["member_id"]) == (before["cluster_id"], before["member_id"])
    assert int(after["revision"]) == snapshot.revision
    assert int(after["raft_term"]) == 2


def plain(answer: Any) -> Any:
    """The answer without the parts that differ between servers."""
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    kept = {name: plain(value) for name, value in answer.items() if name != "header"}
    if "header" in answer:
        kept["revision"] = answer["header"]["revision"]
    return kept


def watch_events(real: Server, count: int) -> list[tuple[int, bytes, bool]]:
    """The events of a watch on all keys, from the first revision on."""
    events: list[tuple[int, bytes, bool]] = []
    connection = http.client.HTTPConnection("127.0.0.1", real.port, timeout=10)
    connection.request("POST", "/v3/watch", json.dumps(watch_request(Watch(b"\0", 1, end=b"\0", puts=True))))
    response = connection.getresponse()
    while len(events) < count:
        for event in json.loads(response.readline())["result"].get("events", ()):
            key = event["kv"]
            events.append((int(key["mod_revision"]), b64decode(key["key"]), event.get("type") == "DELETE"))
    connection.close()
    return events


def test_an_expired_lease_deletes_its_keys_in_one_revision() -> None:
    store = Store()
    store.call("lease/grant", {"ID": "7", "TTL": "5"}, now=0.0)
    for key in (b"a", b"b"):
        store.call("kv/txn", txn([], [put(key, b"", 7)]), now=0.0)

    store.expire_lease(7)

    assert store.revision == 4
    assert [(change.revision, change.key) for change in store.changes if change.is_delete] == [(4, b"a"), (4, b"b")]
    with pytest.raises(LeaseNotFound):
        store.call("kv/txn", txn([], [put(b"a", b"", 7)]), now=0.0)


class WithoutPolling(EtcdServer):
    backend = NoPolling


def test_a_watch_from_a_revision_is_enough_when_no_notification_is_lost() -> None:
    """The control for the mutant, which has no polling either: with the revision, no world fails."""
    mutant = MUTANTS["etcd-watch-without-revision"]
    plan = replace(mutant, server=WithoutPolling).apply(Plan())

    # The mutant is caught in world 24.
    assert [seed for seed in range(15, 30) if run(plan, seed).failure] == []


def test_a_running_waiter_keeps_its_place_while_it_waits() -> None:
    """The waiter lease is shorter than the wait, so it has to be kept alive."""
    plan = Plan(backend="etcd", faults=CALM, workload=replace(USUAL, hold_max=12.0))
    waits: list[float] = []
    for seed in range(4):
        queued: dict[int, h.ServerQueued] = {}
        for event in run(plan, seed).history:
            if isinstance(event, h.ServerQueued):
                assert event.ticket not in queued, f"seed {seed}: a second place"
                queued[event.ticket] = event
            elif isinstance(event, h.Granted) and event.ticket in queued:
                waits.append(event.at - queued[event.ticket].at)

    assert max(waits) > 5 * WAITER_TTL


def test_a_dead_waiter_leaves_the_queue_behind_a_lost_lease_of_its_own_client() -> None:
    """The lost lease has a `lock_delay`, so its key stays. The waiter's key leaves in time."""
    small = SmallWorld(Plan(backend="etcd"), Choices(decisions=()))
    world, server = small.world, small.server
    a, b = small.add("a"), small.add("b")

    async def hold_y() -> None:
        lease = await b.client.acquire(b.client.lock("y", options={"ttl": 6.0}), None)
        assert lease is not None
        await b.client.runtime.sleep(8.0)
        await b.client.release(lease)

    async def take_both() -> None:
        await a.client.runtime.sleep(1.0)
        options: LockOptions = {"ttl": 6.0, "lock_delay": 3.0}
        await a.client.acquire_all([a.client.lock(name, options=options) for name in ("x", "y")], None)

    def on_x() -> tuple[int, int]:
        """The number of holders and of waiters."""
        fences = [entry.fence for entry in server.live().values() if entry.lock == "x"]
        return len(fences) - fences.count(None), fences.count(None)

    with quiet():
        b.start(hold_y())
        a.start(take_both())
        world.run(1.5)
        a.process.pause()  # it loses 'x'
        world.run(7.5)
        a.process.resume()
        world.run(9.0)  # it was granted 'y', and tried again to acquire both
        assert on_x() == (1, 1)
        a.process.crash()
        server.process_died(a.process)
        small.recorder.add(h.Crashed(world.now, "a"))
        world.run(world.now + WAITER_TTL + 0.5)
        assert on_x() == (1, 0)
        world.run(30.0)
        assert on_x() == (0, 0)
        small.end()

    verdict = judge(small.recorder.history, Promises(dead_waiter_max=WAITER_TTL + 0.5))
    assert not verdict.broken.get("dead waiters")


@pytest.mark.parametrize("backend", ["etcd", "etcd-key"])
def test_the_protocols_keep_their_guarantees_in_all_worlds(backend: str) -> None:
    # test_worlds.py has the first twelve.
    failed = {seed: result.failure for seed in range(12, 17) if (result := run(Plan(backend=backend), seed)).failure}

    assert failed == {}
