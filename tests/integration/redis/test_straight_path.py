"""Hazard: the straight path lacks a guard: a lock stays held after an interrupt, or a reply reaches the wrong request.

The first acquire of a lock by a thread uses the general path. Each later one uses the straight path if the lock is
free, or if another caller of the client passes its lease on.
"""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast.backends.redis.io import sockets
from holdfast.core import straight_path
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import (
    PROMPT,
    acquiring,
    assert_free_and_clean,
    in_background,
    take,
    waiting,
)
from tests.support.call_counts import calls_of_a_pair, count_calls
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy, Then
from tests.support.redis.servers import Server

KEY = "holdfast:one"


class Interrupt(KeyboardInterrupt):
    """An interrupt by the test, so that a real Ctrl-C still ends the test run."""


def used(lock: holdfast.Lock) -> holdfast.Lock:
    """A lock that this thread has acquired before."""
    take(lock).release()
    return lock


STRICT = "?local_handover=no"
LOCAL_HANDOVER = pytest.mark.parametrize("query", [STRICT, ""], ids=["strict", "local-handover"])


def local_tickets(client: holdfast.Client | holdfast.AsyncClient) -> tuple[int, int]:
    """The numbers of active tickets and of queues for local hand-over."""
    local = client._engine.local
    return (0, 0) if local is None else (len(local.active), len(local.queues))


def is_straight(lease: holdfast.Lease | holdfast.AsyncLease) -> bool:
    return lease._claim.path is not None


def test_the_second_acquire_uses_the_straight_path_and_so_does_its_release(
    server: Server, open_client: OpenClient
) -> None:
    client = open_client(server.url)
    lock = client.lock("one")
    first = take(lock)
    first.release()
    calls = server.info("commandstats")["cmdstat_evalsha"]

    second = take(lock)
    fence = second.fence
    assert client.inspect("one").holders[0].fence == fence
    assert client.lock("one").acquire(timeout=0) is None
    second.release()

    assert (is_straight(first), is_straight(second)) == (False, True)
    assert fence > first.fence
    assert calls != server.info("commandstats")["cmdstat_evalsha"]
    assert_free_and_clean(server, "one")


def test_local_handover_costs_a_lone_caller_two_calls_of_c_functions_and_no_frame(
    server: Server, open_client: OpenClient
) -> None:
    frames, c_calls = calls_of_a_pair(open_client(f"{server.url}{STRICT}"))

    assert calls_of_a_pair(open_client(server.url)) == (frames, c_calls + 2)


def test_a_lease_of_the_straight_path_is_passed_on_to_another_caller_of_the_client(
    server: Server, open_client: OpenClient
) -> None:
    client = open_client(server.url)
    local = client._engine.local
    assert local is not None
    lease = take(used(client.lock("one")))
    assert is_straight(lease)

    pending = acquiring(client.lock("one"))
    eventually(lambda: "one" in local.queues and len(local.queues["one"].waiting) == 1)
    assert not client.inspect("one").waiters
    lease.release()
    passed = pending.result(PROMPT)

    assert passed._claim.server is lease._claim
    assert passed.fence > lease.fence
    passed.release()
    assert local_tickets(client) == (0, 0)
    assert_free_and_clean(server, "one")


class Waiter:
    """A thread that has used a lock. `wait` lets it acquire the lock again and count the function calls of that."""

    def __init__(self, lock: holdfast.Lock) -> None:
        self._may_wait = threading.Event()
        self._lock = lock
        self.calls: Counter[str] = Counter()
        self.is_used = threading.Event()
        self.lease: holdfast.Lease | None = None
        self.ended = in_background(self._run)

    def _run(self) -> None:
        used(used(self._lock))  # the second time prepares the requests
        self.is_used.set()
        assert self._may_wait.wait(PROMPT)
        self.calls = count_calls(self._acquire_and_release)

    def _acquire_and_release(self) -> None:
        with self._lock as self.lease:
            pass

    def wait(self, client: holdfast.Client, count: int) -> None:
        """Wait for the lock, as the nth caller of the client."""
        local = client._engine.local
        assert local is not None
        self._may_wait.set()
        eventually(lambda: "one" in local.queues and len(local.queues["one"].waiting) == count)


def test_a_caller_that_waits_for_another_one_uses_the_straight_path(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    lock = client.lock("one")
    waiters = [Waiter(lock) for _ in range(3)]
    for waiter in waiters:
        assert waiter.is_used.wait(PROMPT)
    first = take(used(lock))
    for count, waiter in enumerate(waiters, start=1):
        waiter.wait(client, count)

    first.release()
    for waiter in waiters:
        waiter.ended.result(PROMPT)

    leases = [waiter.lease for waiter in waiters if waiter.lease is not None]
    assert [is_straight(lease) for lease in leases] == [True] * 3
    assert [lease._claim.server for lease in leases] == [first._claim] * 3
    assert sorted({first.fence, *(lease.fence for lease in leases)}) == [
        first.fence,
        *(lease.fence for lease in leases),
    ]
    # The general path has about 50 frames. A busy machine may need a request to extend the turn, but not for each.
    assert min(waiter.calls["call"] for waiter in waiters) <= 30
    assert local_tickets(client) == (0, 0)
    assert_free_and_clean(server, "one")


@pytest.mark.parametrize(
    "options",
    [
        {"lock_delay": 1.0},
        {"stop_margin": 1.0},
        {"min_hold": 0.01},
        {"owner": "me"},
        {"detect_deadlocks": True},
        {"max_hold": 60.0},
        {"renew": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_lock_with_a_rare_option_uses_the_general_path(
    options: dict[str, Any], server: Server, open_client: OpenClient
) -> None:
    lock = used(open_client(server.url).lock("one", timeout=PROMPT, **options))

    with lock as lease:
        assert not is_straight(lease)


def test_a_client_with_required_guarantees_or_observers_uses_the_general_path(
    server: Server, open_client: OpenClient
) -> None:
    required = used(open_client(server.url, require={"wake": "push"}).lock("one"))
    with required as lease:
        assert not is_straight(lease)

    client = open_client(server.url)
    lock = used(client.lock("one"))
    with lock as lease:
        assert is_straight(lease)
        operations: list[str] = []
        client._observe_requests(lambda operation, *_: operations.append(operation))
    with lock as lease:
        assert not is_straight(lease)
    assert operations == ["release", "try_acquire", "release"]


@LOCAL_HANDOVER
def test_a_busy_lock_is_waited_for_and_granted_in_order(query: str, server: Server, open_client: OpenClient) -> None:
    client, other = open_client(f"{server.url}{query}"), open_client(f"{server.url}{STRICT}")
    lock = used(client.lock("one"))
    held = take(other.lock("one"))
    first_waiter = waiting(other, "one")

    assert lock.acquire(timeout=0) is None
    with pytest.raises(holdfast.AcquireTimeout, match="held by"), client.lock("one", timeout=0.05):
        pass
    assert lock.acquire(timeout=0.05) is None
    pending = acquiring(client.lock("one"))
    held.release()
    first_waiter.result(PROMPT).release()
    pending.result(PROMPT).release()

    assert local_tickets(client) == (0, 0)
    assert_free_and_clean(server, "one")


@LOCAL_HANDOVER
@pytest.mark.parametrize("then", ["cut", "hang"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_lost_reply_to_an_acquire_or_a_release_leaves_one_lease_or_none(  # noqa: PLR0917
    lost: str, then: Then, query: str, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client = open_client(f"{proxy.url}{query}{'&' if query else '?'}io_timeout=0.5")
    other = open_client(server.url)
    lock, lose = used(client.lock("one")), proxy.lose_next_reply if lost == "reply" else proxy.lose_next_request

    lose(KEY, then=then)
    lease = take(lock)
    proxy.await_loss()
    assert is_straight(lease)
    assert other.lock("one").acquire(timeout=0) is None

    lose(KEY, then=then)
    with pytest.raises(holdfast.BackendError):
        lease.release()
    proxy.await_loss()
    take(other.lock("one", timeout=PROMPT)).release()
    take(lock).release()
    assert local_tickets(client) == (0, 0)
    assert_free_and_clean(server, "one")


def test_a_request_that_is_not_sent_leaves_no_ticket_that_other_callers_wait_for(
    server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client = open_client(proxy.url)
    lock = used(client.lock("one"))

    proxy.refuse()
    for _ in range(2):  # the first acquire finds its connection closed, the second has no connection
        with pytest.raises(holdfast.BackendUnavailable):
            lock.acquire()
        assert local_tickets(client) == (0, 0)


def test_an_unknown_script_is_loaded(server: Server, open_client: OpenClient) -> None:
    lock = used(open_client(server.url).lock("one"))

    server.call("SCRIPT", "FLUSH")
    lease = take(lock)
    assert is_straight(lease)
    server.call("SCRIPT", "FLUSH")
    lease.release()

    assert_free_and_clean(server, "one")


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Interrupt a call at its nth line in the files of the straight path. Return False if it has fewer lines there."""
    files = {straight_path.__file__, sockets.__file__}
    lines_left, current_line = step, 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines_left, current_line
        if frame.f_code.co_filename not in files:
            return trace if event == "call" else None
        if event == "line":
            # Not at the exit of a mutex: CPython runs no signal handler between the last line of a body without calls
            # and the call of `__exit__` (runtimes/threads.py: Mutex).
            previous_line, current_line = current_line, frame.f_lineno
            if previous_line > current_line:
                text = linecache.getline(frame.f_code.co_filename, current_line)
                if text.strip().startswith("with "):
                    return trace
            lines_left -= 1
            if lines_left == 0:
                sys.settrace(None)
                raise Interrupt
        return trace

    previous_trace = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(previous_trace)
    return False


@pytest.mark.skipif("coverage" in sys.modules, reason="the test needs the trace function that coverage uses")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@LOCAL_HANDOVER
@pytest.mark.parametrize("call", ["acquire", "release"])
def test_an_interrupt_at_any_line_leaves_the_lock_free(
    call: str, query: str, server: Server, open_client: OpenClient
) -> None:
    client, other = open_client(f"{server.url}{query}"), open_client(f"{server.url}{STRICT}")
    probe = other.lock("one")
    leases: list[holdfast.Lease] = []
    step, interrupts = 0, 0
    while True:
        step += 1
        lock = used(client.lock("one"))
        if call == "acquire":
            is_interrupted = interrupted_at(step, lambda: leases.append(take(lock)))  # noqa: B023  (called at once)
        else:
            leases.append(take(lock))
            assert is_straight(leases[0])
            is_interrupted = interrupted_at(step, leases[0].release)
        if is_interrupted and call == "acquire":
            assert not leases
        if not is_interrupted:
            break
        interrupts += 1
        leases.clear()
        assert not lock.held or call == "release"
        if lock.held:  # the interrupt came before the release had begun
            lock.release()

        probe_lease = probe.acquire(timeout=20)
        assert probe_lease is not None, f"the lock is stuck after an interrupt at line {step}"
        probe_lease.release()

    for lease in leases:
        if lease.held:
            lease.release()
    assert interrupts > (30 if call == "acquire" else 15)
    assert client.stats()[:2] == (0, 0)
    eventually(lambda: local_tickets(client) == (0, 0))
    assert_free_and_clean(server, "one")


@pytest.mark.skipif("coverage" in sys.modules, reason="the test needs the trace function that coverage uses")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("call", ["acquire", "release"])
def test_an_interrupt_at_any_line_of_a_local_hand_over_leaves_the_lock_free(
    call: str, server: Server, open_client: OpenClient
) -> None:
    # The next caller keeps the lease that was passed to it, although the interrupted release is repeated.
    client = open_client(server.url)
    local = client._engine.local
    assert local is not None
    probe = open_client(server.url).lock("one")
    step, interrupts = 1, 0
    is_done = False
    while not is_done:
        may_release = threading.Event()
        lock = used(client.lock("one"))
        held = in_background(partial(take, lock)).result(PROMPT)

        def release(waiters: int, held: holdfast.Lease = held, may_release: threading.Event = may_release) -> None:
            eventually(
                lambda: may_release.is_set() or ("one" in local.queues and len(local.queues["one"].waiting) == waiters)
            )
            held.release()

        if call == "acquire":
            released, follower = in_background(partial(release, 1)), None
            is_interrupted = interrupted_at(step, partial(take, lock))
            may_release.set()
            is_done = not is_interrupted and is_straight(lock._last_entered())
        else:
            released, follower = in_background(partial(release, 2)), in_background(partial(take_second, client))
            lease = take(lock)
            is_interrupted = is_straight(lease) and interrupted_at(step, lease.release)
            is_done = is_straight(lease) and not is_interrupted
        # If the machine is so busy that the lease was not passed on in time, the same line is tried again.
        step, interrupts = step + is_interrupted, interrupts + is_interrupted
        released.result(PROMPT)
        if lock.held:  # not interrupted, or before the release had begun
            lock.release()
        if follower is not None:
            follower.result(20)
        probe_lease = probe.acquire(timeout=20)
        assert probe_lease is not None, f"the lock is stuck after an interrupt at line {step}"
        probe_lease.release()

    assert interrupts > (30 if call == "acquire" else 15)
    assert client.stats()[:2] == (0, 0)
    eventually(lambda: local_tickets(client) == (0, 0))
    assert_free_and_clean(server, "one")


def take_second(client: holdfast.Client) -> None:
    """Wait until another caller waits for the lock. Then acquire the lock after that caller, and release it."""
    local = client._engine.local
    assert local is not None
    eventually(lambda: "one" in local.queues and len(local.queues["one"].waiting) == 1)
    with client.lock("one", timeout=20):
        pass


@LOCAL_HANDOVER
async def test_a_task_that_is_cancelled_while_its_request_is_sent_leaves_the_lock_free(
    query: str, server: Server
) -> None:
    async with holdfast.AsyncClient(f"{server.url}{query}") as client, holdfast.AsyncClient(server.url) as other:
        lock, probe = client.lock("one"), other.lock("one")

        async def acquire() -> holdfast.AsyncLease:
            async with lock:
                pass
            lease = await lock.acquire()
            assert lease is not None
            assert is_straight(lease)
            return lease

        for steps in range(1, 12):
            task = asyncio.create_task(acquire())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await task.result().release()
            probe_lease = await probe.acquire(timeout=20)
            assert probe_lease is not None, f"the lock is stuck after a cancellation at step {steps}"
            await probe_lease.release()
        assert local_tickets(client) == (0, 0)

    assert_free_and_clean(server, "one")
