"""Nothing that blocks delays the report of a loss or another lease: log handlers, subscribers, drivers, callbacks."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.core.schedule import PendingRelease
from holdfast.core.tickets import Claim
from holdfast.runtimes import system, threads
from holdfast.runtimes.threads import flush_log
from tests.support.processes import PATIENCE, eventually

SHORT = 0.2  # ttl in seconds of a lease that is to be lost


class Blocked(logging.Handler):
    """A handler, or any other function, that does not return before `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.entered = 0

    def emit(self, record: object) -> None:
        self.entered += 1
        self.free.wait(60)


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    handler = Blocked()
    yield handler
    handler.free.set()
    flush_log()


@pytest.fixture
def slow_log(blocked: Blocked) -> Iterator[Blocked]:
    log = logging.getLogger("holdfast")
    log.addHandler(blocked)
    yield blocked
    blocked.free.set()
    flush_log()
    log.removeHandler(blocked)


@pytest.fixture
def client() -> Iterator[holdfast.Client]:
    with holdfast.Client(f"memory://{uuid.uuid4().hex}") as client:
        yield client


def renewals_of(client: holdfast.Client) -> list[str]:
    """The names of locks, as they are renewed from now on."""
    renewed: list[str] = []
    backend, renew = client._engine.backend, client._engine.backend.renew

    async def recorded(claims: Any, *, deadline: float) -> Any:
        renewed.extend(claim.name for claim in claims)
        return await renew(claims, deadline=deadline)

    backend.renew = recorded  # type: ignore[method-assign]
    return renewed


def test_a_loss_is_reported_while_a_log_handler_blocks(client: holdfast.Client, slow_log: Blocked) -> None:
    reported: list[holdfast.Lease] = []
    renewed = renewals_of(client)
    first = client.lock("first", ttl=SHORT, renew=False, on_lost=reported.append).acquire()
    other = client.lock("other", ttl=3 * SHORT).acquire()
    assert first is not None
    assert other is not None

    assert first.wait_lost(30)
    eventually(lambda: reported == [first])
    eventually(lambda: slow_log.entered == 1)

    # The handler is still inside its first call, and other leases are renewed and lost as usual.
    count = len(renewed)
    eventually(lambda: len(renewed) > count + 2)
    second = client.lock("second", ttl=SHORT, renew=False, on_lost=reported.append).acquire()
    eventually(lambda: reported == [first, second])
    assert slow_log.entered == 1
    assert other.held
    other.release()


def test_a_loss_is_reported_while_a_subscriber_blocks(client: holdfast.Client, blocked: Blocked) -> None:
    reported: list[holdfast.Lease] = []
    events: list[tuple[str, str]] = []

    def subscriber(event: holdfast.Event) -> None:
        events.append((event.kind, event.lock))
        if event.kind == "lost":
            blocked.emit(event)

    client.subscribe(subscriber)
    first = client.lock("first", ttl=SHORT, renew=False, on_lost=reported.append).acquire()
    eventually(lambda: reported == [first])
    eventually(lambda: blocked.entered == 1)

    second = client.lock("second", ttl=SHORT, renew=False, on_lost=reported.append).acquire()  # does not wait either
    eventually(lambda: reported == [first, second])
    path = ("acquiring", "acquired", "lost")
    assert events == [(kind, "first") for kind in path]

    blocked.free.set()
    eventually(lambda: len(events) == 6)
    assert events[3:] == [(kind, "second") for kind in path]


async def test_a_log_handler_that_blocks_does_not_stop_a_loop(slow_log: Blocked) -> None:
    async with holdfast.AsyncClient(f"memory://{uuid.uuid4().hex}") as client:
        for _ in range(2):  # the second while the handler is still inside its first call
            with pytest.raises(holdfast.LockLost):
                async with client.lock("a", ttl=SHORT, renew=False):
                    await asyncio.sleep(60)
    assert slow_log.entered == 1


def test_a_loss_is_reported_while_requests_block_past_their_deadline(client: holdfast.Client, blocked: Blocked) -> None:
    """As connecting does while a name server is silent."""
    reported: list[holdfast.Lease] = []

    async def stuck(claims: Any, *, deadline: float) -> Any:
        blocked.emit(claims)
        raise holdfast.BackendUnavailable(backend="memory://", problem="no such name")

    client._engine.backend.renew = stuck  # type: ignore[method-assign]
    first = client.lock("first", ttl=SHORT, on_lost=reported.append).acquire()
    eventually(lambda: blocked.entered == 1)
    second = client.lock("second", ttl=SHORT, on_lost=reported.append).acquire()

    eventually(lambda: sorted(lease.name for lease in reported) == ["first", "second"])
    assert not blocked.free.is_set()
    assert first is not None
    assert second is not None


def test_a_renewal_does_not_wait_for_another_one_that_blocks(client: holdfast.Client, blocked: Blocked) -> None:
    backend, renew = client._engine.backend, client._engine.backend.renew
    renewed: list[str] = []

    async def stuck_once(claims: Any, *, deadline: float) -> Any:
        if claims[0].name == "stuck":
            blocked.emit(claims)
        renewed.extend(claim.name for claim in claims)
        return await renew(claims, deadline=deadline)

    backend.renew = stuck_once  # type: ignore[method-assign]
    stuck = client.lock("stuck", ttl=SHORT, on_lost=lambda _: None).acquire()
    eventually(lambda: blocked.entered == 1)

    with client.lock("other", ttl=0.6) as lease:
        eventually(lambda: renewed.count("other") > 2)
        assert lease.held
    assert "stuck" not in renewed
    assert stuck is not None


# ── no thread can be started ─────────────────────────────────────────────────────────────────────────────────────────


class NoThreads:
    """Threads of these names cannot be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: tuple[str, ...] = ()
        self.count = 0
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name.startswith(self.refused):
                self.count += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> NoThreads:
    return NoThreads(monkeypatch)


@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one", "several"])
def test_a_lock_is_released_if_no_keeper_thread_can_be_started(
    client: holdfast.Client, no_threads: NoThreads, names: list[str]
) -> None:
    lock: Any = client.lock(names[0]) if len(names) == 1 else client.lock_all(names)
    no_threads.refused = ("holdfast",)

    for _ in range(2):
        with pytest.raises(holdfast.ThreadStartError, match="'holdfast-keeper' could not be started"):
            lock.acquire(timeout=0)
        assert not lock.held
        assert client.locks() == []

    no_threads.refused = ()
    with lock:  # the client works again
        assert len(client.locks()) == len(names)


def test_a_release_without_an_answer_and_without_a_thread_is_repeated_later(
    client: holdfast.Client, no_threads: NoThreads
) -> None:
    backend, release = client._engine.backend, client._engine.backend.release
    outage = [True, True]

    async def unanswered(claims: Any, *, deadline: float) -> Any:
        if outage:
            outage.pop()
            raise holdfast.OutcomeUnknown(backend="memory://", problem="no answer")
        return await release(claims, deadline=deadline)

    backend.release = unanswered  # type: ignore[method-assign]
    no_threads.refused = ("holdfast",)
    with pytest.raises(holdfast.ThreadStartError):
        client.lock("a").acquire(timeout=0)
    assert client.locks()

    no_threads.refused = ()
    with client.lock("b"):
        eventually(lambda: [info.name for info in client.locks()] == ["b"])


def test_a_waiter_repeats_a_release_that_no_thread_could_be_started_for(
    client: holdfast.Client, no_threads: NoThreads
) -> None:
    backend, release = client._engine.backend, client._engine.backend.release
    outage = [True, True]

    async def unanswered(claims: Any, *, deadline: float) -> Any:
        if outage:
            outage.pop()
            raise holdfast.OutcomeUnknown(backend="memory://", problem="no answer")
        return await release(claims, deadline=deadline)

    backend.release = unanswered  # type: ignore[method-assign]
    no_threads.refused = ("holdfast",)
    with pytest.raises(holdfast.ThreadStartError):
        client.lock("a").acquire(timeout=0)
    no_threads.refused = ()

    with client.lock("a", timeout=PATIENCE):
        assert outage == [], "otherwise the ticket of its own client blocks it for the ttl"


def test_a_worker_continues_when_the_thread_of_the_timer_cannot_be_started(
    client: holdfast.Client, no_threads: NoThreads
) -> None:
    keeper, now = client._engine._keeper, system.now()
    ticket = Claim("a", "0" * 32, 30.0, 1, exclusive=True, agent="", info="{}")
    keeper._schedule.pending[ticket.nonce] = PendingRelease(ticket, now + 0.5)
    no_threads.refused = ("holdfast",)

    until = keeper._take_due(1)

    assert until == pytest.approx(now + 0.5), "the worker itself wakes when the release is due"
    no_threads.refused = ()
    keeper.cancel(ticket)


def test_renewals_continue_when_a_thread_can_be_started_again(client: holdfast.Client, no_threads: NoThreads) -> None:
    renewed = renewals_of(client)
    no_threads.refused = ("holdfast-keeper-io",)
    with client.lock("a", ttl=3.0) as lease:
        eventually(lambda: no_threads.count > 0)
        assert not renewed
        no_threads.refused = ()
        eventually(lambda: bool(renewed))
        lease.check()


def test_a_loss_is_reported_although_no_thread_can_be_started(client: holdfast.Client, no_threads: NoThreads) -> None:
    reported: list[holdfast.Lease] = []
    lease = client.lock("a", ttl=SHORT, renew=False, on_lost=reported.append).acquire()
    no_threads.refused = ("holdfast",)

    eventually(lambda: reported == [lease])

    assert lease is not None
    assert lease.lost


def test_a_dispatcher_runs_calls_later_when_no_thread_could_be_started_for_them(no_threads: NoThreads) -> None:
    dispatcher, called = threads.Dispatcher("test"), list[int]()
    no_threads.refused = ("holdfast-test",)
    dispatcher.post(lambda: called.append(1))
    assert not called
    assert not dispatcher.is_idle

    no_threads.refused = ()
    dispatcher.post(lambda: called.append(2))

    eventually(lambda: dispatcher.is_idle)
    assert called == [1, 2]


def test_a_dispatcher_that_hangs_drops_calls_above_its_limit(blocked: Blocked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.Dispatcher, "calls_max", 3)
    dispatcher, called = threads.Dispatcher("test"), list[int]()
    dispatcher.post(lambda: blocked.emit(None))
    eventually(lambda: blocked.entered == 1)

    for number in range(5):
        dispatcher.post(functools.partial(called.append, number))
    blocked.free.set()

    eventually(lambda: dispatcher.is_idle)
    assert called == [0, 1, 2]


@pytest.mark.parametrize("kind", ["lock", "lock_all"])
def test_a_loss_during_a_release_or_check_is_lock_lost_and_never_not_held(
    client: holdfast.Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = client._engine
    clock = engine.runtime.now

    def now() -> float:  # while this thread reads the clock, another one reports the loss
        for ref in list(engine._leases.values()):
            held = ref()
            if held is not None:
                engine.lose(held, "its time was up")
        return clock()

    def acquire() -> holdfast.Lease | holdfast.LeaseAll:
        lease = client.lock("a").acquire() if kind == "lock" else client.lock_all(["a"]).acquire()
        assert lease is not None
        monkeypatch.setattr(engine.runtime, "now", now)
        return lease

    with pytest.raises(holdfast.LockLost, match="its time was up"):
        acquire().release()
    monkeypatch.undo()
    lease = acquire()
    with pytest.raises(holdfast.LockLost, match="its time was up"):
        (lease.check(), lease.check())  # the loss may be reported between the two
