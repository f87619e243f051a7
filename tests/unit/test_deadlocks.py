"""Hazard: an attempt is ended without a deadlock, or not exactly one attempt is ended for a deadlock."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from holdfast import Client, LockLost, OutcomeUnknown, WouldDeadlock
from holdfast.core.deadlocks import Cycle, DeadlockDetector, deadlock_error
from holdfast.core.engine import Engine
from holdfast.core.ports import Caller
from holdfast.core.tickets import Claim
from holdfast.runtimes.threads import run_sync

FOREVER = float("inf")
ROUNDS = 12


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(f"memory://{uuid.uuid4().hex}") as client:
        yield client
    WaitingCaller.alive.clear()


class WaitingCaller:
    """A thread or task of any process. The test calls the steps of its waiting loop."""

    alive: ClassVar[list[WaitingCaller]] = []  # keeps their leases from being dropped before the client is closed
    _numbers = itertools.count(1_000_000)

    def __init__(self, client: Client) -> None:
        self.client = client
        self.engine: Engine[Any] = client._engine
        self.caller = Caller(next(self._numbers))
        self.detector: DeadlockDetector | None = None
        self.leases: dict[str, Any] = {}
        self.alive.append(self)

    def acquire(self, name: str, *, shared: bool = False, detects: bool = False) -> None:
        lock = self.client.rwlock(name).read() if shared else self.client.lock(name, detect_deadlocks=detects)
        self.leases[name] = run_sync(self.engine.acquire_new(lock, self.caller, 0)).lease
        assert self.leases[name] is not None

    def release(self, name: str) -> None:
        run_sync(self.engine.release(self.leases.pop(name)))

    def wait_for(self, name: str, *, shared: bool = False, detects: bool = True, detached: bool = False) -> None:
        locks = self.client.rwlock(name, detect_deadlocks=detects)
        spec = (locks.read() if shared else locks.write())._spec
        claim = self.engine._claim(spec, self.caller, detached)
        self.poll(claim)
        self.detector = DeadlockDetector(self.engine, claim)

    def poll(self, claim: Claim) -> None:
        run_sync(self.engine.backend.try_acquire(claim, queue=True, deadline=self.engine.request_deadline()))

    def walk(self) -> Cycle:
        """Make the next walk due, and return the cycle that this attempt has to break."""
        assert self.detector is not None
        self.detector.next_walk = 0.0
        return run_sync(self.detector.find(FOREVER))

    def give_up(self) -> None:
        assert self.detector is not None
        run_sync(self.engine.backend.release([self.detector.claim], deadline=self.engine.request_deadline()))


def deadlocked(client: Client, count: int = 2) -> list[WaitingCaller]:
    """A ring: each caller holds a lock, and waits for the lock of the next one. The last attempt is the youngest."""
    callers = [WaitingCaller(client) for _ in range(count)]
    for number, caller in enumerate(callers):
        caller.acquire(f"lock{number}")
    for number, caller in enumerate(callers):
        caller.wait_for(f"lock{(number + 1) % count}")
    return callers


def victims(callers: Sequence[WaitingCaller], rounds: int = ROUNDS) -> set[int]:
    """The indices of the callers whose attempts are ended in this number of rounds of walks."""
    ended: set[int] = set()
    for _ in range(rounds):
        for number, caller in enumerate(callers):
            if number not in ended and caller.walk():
                ended.add(number)
                caller.give_up()
    return ended


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_only_the_youngest_waiter_of_a_ring_is_ended(client: Client, count: int) -> None:
    assert victims(deadlocked(client, count)) == {count - 1}


def test_an_attempt_is_not_ended_by_its_first_walk(client: Client) -> None:
    (alone,) = deadlocked(client, 1)  # no other attempt has to confirm

    assert alone.walk() == ()
    assert len(alone.walk()) == 1


def test_the_error_describes_every_wait_of_the_cycle(client: Client) -> None:
    _, youngest = callers = deadlocked(client)
    cycle: Cycle = ()
    while not cycle:
        assert callers[0].walk() == ()
        cycle = youngest.walk()

    error = deadlock_error("lock0", cycle)

    assert isinstance(error, WouldDeadlock)
    assert error.fence == callers[0].leases["lock0"].fence
    assert len(error.cycle) == 2
    assert all(f"'lock{number}'" in str(error) for number in range(2))


def test_an_attempt_is_not_ended_if_another_one_of_the_cycle_stops_confirming(client: Client) -> None:
    elder, youngest = deadlocked(client)
    for _ in range(3):
        elder.walk()

    assert not any(youngest.walk() for _ in range(ROUNDS))


def test_one_confirmation_after_the_first_walk_is_not_enough(client: Client) -> None:
    elder, youngest = deadlocked(client)
    youngest.walk()
    elder.walk()

    assert not any(youngest.walk() for _ in range(ROUNDS))
    elder.walk()
    assert youngest.walk()


def test_a_holder_that_released_the_lock_between_two_walks_ends_the_cycle(client: Client) -> None:
    elder, youngest = deadlocked(client)
    for _ in range(2):
        youngest.walk()
        elder.walk()

    elder.give_up()
    elder.release("lock0")
    elder.wait_for("lock1")

    assert not any(caller.walk() for _ in range(ROUNDS) for caller in (elder, youngest))


def test_a_new_attempt_of_the_same_caller_has_to_be_proven_again(client: Client) -> None:
    elder, youngest = deadlocked(client)
    for _ in range(2):
        youngest.walk()
        elder.walk()
    elder.give_up()
    elder.wait_for("lock1")

    assert not any(youngest.walk() for _ in range(ROUNDS)), "the older attempt has confirmed, the new one has not"
    assert elder.walk() == ()
    assert victims([elder, youngest]) == {0}, "the new attempt is the youngest"


def test_a_lease_with_another_fence_than_that_in_the_ticket_is_no_part_of_a_cycle(client: Client) -> None:
    elder, youngest = deadlocked(client)
    for _ in range(2):
        youngest.walk()
        elder.walk()
    fence = elder.leases["lock0"].fence

    assert youngest.detector is not None
    youngest.give_up()
    assert client.break_lock("lock0", fence)
    with pytest.raises(LockLost):
        elder.release("lock0")
    elder.acquire("lock0")  # by the same caller, while its other ticket waits
    youngest.poll(youngest.detector.claim)

    assert victims([elder, youngest]) == set()


def test_a_lease_whose_fence_changed_in_the_store_is_part_of_a_cycle(client: Client) -> None:
    """A server that lost the grant of a waiting ticket, as in a failover, grants it again with another fence."""
    callers = [WaitingCaller(client) for _ in range(2)]
    for number, caller in enumerate(callers):
        caller.acquire(f"lock{number}", detects=True)
        caller.leases[f"lock{number}"]._fence -= 1
    for number, caller in enumerate(callers):
        caller.wait_for(f"lock{1 - number}")

    assert victims(callers) == {1}


@pytest.mark.parametrize("detects", [True, False])
def test_an_earlier_lease_of_the_same_caller_is_no_part_of_a_cycle(client: Client, *, detects: bool) -> None:
    """A store that was restored has a lease that was released after its copy was made. The lease is not renewed."""
    elder, youngest = WaitingCaller(client), WaitingCaller(client)
    elder.acquire("lock0", detects=detects)
    stored = elder.leases["lock0"]
    elder.caller.leases.clear()  # the lease was released, and another one was acquired, which the store has lost
    lost = WaitingCaller(client)
    lost.acquire("elsewhere", detects=detects)
    elder.caller.leases[0, "lock0"] = lambda: lost.leases["elsewhere"]
    lost.leases["elsewhere"]._spec = stored._spec
    youngest.acquire("lock1", detects=detects)
    elder.wait_for("lock1")
    youngest.wait_for("lock0")

    assert victims([elder, youngest]) == set()


@pytest.mark.parametrize("options", [{"detects": False}, {"detached": True}])
def test_an_attempt_that_may_not_wait_is_no_part_of_a_cycle(client: Client, options: dict[str, bool]) -> None:
    elder, youngest = WaitingCaller(client), WaitingCaller(client)
    elder.acquire("a")
    youngest.acquire("b")
    elder.wait_for("b", **options)
    youngest.wait_for("a")

    assert victims([elder, youngest]) == set()


def test_a_waiter_behind_a_deadlock_is_not_ended(client: Client) -> None:
    callers = deadlocked(client)
    bystander = WaitingCaller(client)
    bystander.acquire("c")
    bystander.wait_for("lock0")
    later_waiter = WaitingCaller(client)
    later_waiter.wait_for("c")

    assert victims([later_waiter, bystander, *callers]) == {3}


def test_readers_and_writers_are_part_of_a_cycle(client: Client) -> None:
    reader, writer = WaitingCaller(client), WaitingCaller(client)
    reader.acquire("data", shared=True)
    writer.acquire("b")
    writer.wait_for("data")
    reader.wait_for("b")

    assert victims([reader, writer]) == {0}


def test_readers_do_not_wait_for_readers(client: Client) -> None:
    first, second = WaitingCaller(client), WaitingCaller(client)
    first.acquire("a", shared=True)
    second.acquire("b", shared=True)
    first.wait_for("b", shared=True)
    second.wait_for("a", shared=True)

    assert victims([first, second]) == set()


@pytest.mark.parametrize("youngest", [0, 2])
def test_a_reader_behind_a_waiting_writer_is_part_of_a_cycle(client: Client, youngest: int) -> None:
    holder, writer, reader = WaitingCaller(client), WaitingCaller(client), WaitingCaller(client)
    holder.acquire("data", shared=True)
    reader.acquire("b")
    if youngest == 2:
        holder.wait_for("b")
    writer.wait_for("data")  # holds nothing, and takes part by its place in the queue
    reader.wait_for("data", shared=True)
    if youngest == 0:
        holder.wait_for("b")

    assert victims([holder, writer, reader]) == {youngest}


def test_a_reader_that_waits_to_become_the_writer_waits_for_itself(client: Client) -> None:
    upgrading, other = WaitingCaller(client), WaitingCaller(client)
    upgrading.acquire("data", shared=True)
    other.acquire("data", shared=True)
    upgrading.wait_for("data")

    assert victims([upgrading]) == {0}


def test_two_deadlocks_with_a_common_caller_end_as_few_attempts_as_needed(client: Client) -> None:
    common, first, second = WaitingCaller(client), WaitingCaller(client), WaitingCaller(client)
    common.acquire("a")
    first.acquire("b", shared=True)
    second.acquire("b", shared=True)
    common.wait_for("b")
    first.wait_for("a")
    second.wait_for("a")

    assert victims([common, first, second]) == {1, 2}


def test_an_unanswered_confirmation_does_not_count_twice(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    elder, youngest = deadlocked(client)
    youngest.walk()
    advance, sent = client._engine.backend.advance_register, list[tuple[int, str]]()

    async def unanswered(name: str, number: int, **options: Any) -> bool:
        sent.append((number, options["nonce"]))
        await advance(name, number, **options)
        raise OutcomeUnknown(backend="memory://", problem="no answer")

    monkeypatch.setattr(client._engine.backend, "advance_register", unanswered)
    for _ in range(5):
        elder.walk()
    monkeypatch.undo()

    assert len(sent) == 5
    assert len(set(sent)) == 1, "the same confirmation is repeated until it is answered"
    assert not any(youngest.walk() for _ in range(ROUNDS))
