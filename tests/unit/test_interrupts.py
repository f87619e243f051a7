"""KeyboardInterrupt at many points of acquire, release and `with`: never a stuck lock, never a lease without an owner.

The signal comes from a timer, whose delay is increased step by step from the first line of the call to its end.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.runtimes.blocks import ThreadBlock
from tests.support.interrupts import Interrupt, alarms_interrupt, interrupted

# An interrupt between the creation of a coroutine and its first step leaves one that never ran: it sent no request.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # An interrupt between open() and `with` leaves a file to the reference count, which closes it.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif("coverage" in sys.modules, reason="an interrupt inside coverage's tracer leaves its lock taken"),
    pytest.mark.timeout(method="thread"),  # these tests use the signal that pytest-timeout would use
]

SWEEP = [step * 1e-6 for step in range(1, 500)]  # delays in seconds: from the first line of the call to past its end
SWEEPS_MAX, ENOUGH = 50, 20


@pytest.fixture(autouse=True)
def _alarm_interrupts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    report = sys.unraisablehook

    def report_others(problem: Any) -> None:
        # Python itself swallows an interrupt inside a finalizer.
        if not issubclass(problem.exc_type, Interrupt):
            report(problem)

    monkeypatch.setattr(sys, "unraisablehook", report_others)
    with alarms_interrupt():
        yield


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{tmp_path}/locks.db"


class Sweep:
    """Repeats the delays until enough interrupts have hit the call. How many do so depends on the machine."""

    def __init__(self) -> None:
        self.hits = 0

    def __iter__(self) -> Iterator[float]:
        for _ in range(SWEEPS_MAX):
            yield from SWEEP
            if self.hits >= ENOUGH:
                return
        pytest.fail("hardly any interrupt hit the call: this test would show nothing")


def test_an_interrupted_acquire_releases_the_lock(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        lock, probe = client.lock("a"), other.lock("a")
        leases: list[holdfast.Lease | None] = []
        sweep = Sweep()
        for delay in sweep:
            leases.clear()
            sweep.hits += interrupted(delay, lambda: leases.append(lock.acquire(timeout=0)))
            for lease in leases:
                assert lease is not None
                lease.release()

            assert not lock.held
            granted = probe.acquire(timeout=20)
            assert granted is not None, f"stuck after an interrupt at {delay * 1e6:.0f} µs"
            granted.release()

        assert client.stats()[:2] == (0, 0)


def test_an_interrupted_release_is_finished_by_the_keeper(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        lock, probe = client.lock("a"), other.lock("a")
        sweep = Sweep()
        for delay in sweep:
            assert lock.acquire(timeout=20) is not None
            sweep.hits += interrupted(delay, lock.release)

            if lock.held:  # the interrupt came before the release had begun
                lock.release()
            granted = probe.acquire(timeout=20)
            assert granted is not None, f"stuck after an interrupt at {delay * 1e6:.0f} µs"
            granted.release()

        assert client.stats()[:2] == (0, 0)


def test_an_interrupted_with_leaves_nothing_behind(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        lock, probe = client.lock("a", timeout=20), other.lock("a")
        sweep = Sweep()

        def body() -> None:
            with lock as lease:
                lease.check()

        for delay in sweep:
            sweep.hits += interrupted(delay, body)

            if lock.held:
                # The interrupt came before the first instruction of __exit__, where no Python code can catch it. The
                # thread still has the lease, as after an interrupt just before release(), and lock.release() ends it.
                lock.release()
            granted = probe.acquire(timeout=20)
            assert granted is not None, f"stuck after an interrupt at {delay * 1e6:.0f} µs"
            granted.release()

        assert client.stats()[:2] == (0, 0)


# A signal can arrive between the creation of a file or connection and the `with` or `try` that closes it. It is closed
# nevertheless, with its last reference. Python 3.13 reports that of a connection, Python 3.14 of both.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <sqlite3.Connection:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored while finalizing (file|database connection):pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupted_call_of_once_leaves_its_lock_free_and_never_runs_twice(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        sweep = Sweep()
        for step, delay in enumerate(sweep):
            runs: list[int] = []
            once = client.once(str(step), timeout=20, after_error="remember")
            sweep.hits += interrupted(delay, partial(once.run, partial(runs.append, 1)))

            ran = len(runs)
            try:
                other.once(str(step), busy="wait", timeout=20).run(partial(runs.append, 2))
            except (holdfast.OnceInterrupted, holdfast.OnceFailed):
                assert ran <= 1
            assert len(runs) <= 1, f"ran twice after an interrupt at {delay * 1e6:.0f} µs"

        assert client.stats()[:2] == (0, 0)


def test_an_interrupted_call_of_a_decorated_function_leaves_nothing_behind(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        probe = other.lock("a")
        sweep = Sweep()

        @client.locked("a", timeout=20, reentrant=True)
        def work(depth: int) -> None:
            if depth:
                work(depth - 1)

        for delay in sweep:
            sweep.hits += interrupted(delay, lambda: work(1))

            granted = probe.acquire(timeout=20)
            assert granted is not None, f"stuck after an interrupt at {delay * 1e6:.0f} µs"
            granted.release()

        assert client.stats()[:2] == (0, 0)


def test_an_interrupt_before_the_first_instruction_of_an_exit_ends_a_decorated_call(url: str) -> None:
    def interrupt_exit(frame: Any, *_: object) -> None:
        if frame.f_code is vars(ThreadBlock)["__call__"].__code__:
            sys.settrace(None)
            raise Interrupt

    with holdfast.Client(url) as client, holdfast.Client(url) as other:

        @client.locked("a", reentrant=True)
        def work() -> None: ...

        @client.locked("a", reentrant=True)
        def around() -> None:
            hit()
            assert other.lock("a").acquire(timeout=0) is None  # the outer call still has it

        def hit() -> None:
            sys.settrace(interrupt_exit)
            try:
                with pytest.raises(Interrupt):
                    work()
            finally:
                sys.settrace(None)

        for call in (hit, around):
            call()
            granted = other.lock("a").acquire(timeout=20)
            assert granted is not None
            granted.release()


def test_an_interrupted_re_entry_is_not_counted(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        lock = client.lock("a", reentrant=True)
        for delay in SWEEP[:100]:
            outer = lock.acquire(timeout=20)
            assert outer is not None
            inner: list[holdfast.Lease | None] = []
            interrupted(delay, lambda: inner.append(lock.acquire()))  # noqa: B023  (called at once)

            for lease in [*inner, outer]:
                assert lease is outer
                lease.release()
            assert not outer.held, f"counted after an interrupt at {delay * 1e6:.0f} µs"

        with other.lock("a", timeout=20):
            assert len(other.inspect("a").holders) == 1


def test_an_interrupted_wait_leaves_the_queue(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        held = other.lock("a").acquire()
        assert held is not None
        lock = client.lock("a")

        for delay in [step * 1e-3 for step in range(1, 40)]:
            assert interrupted(delay, lambda: lock.acquire(timeout=20))

        held.release()
        with other.lock("a", timeout=20):
            assert len(other.inspect("a").holders) == 1


NAMES = ["a", "b", "c"]


def test_an_interrupted_acquire_of_several_releases_all(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        locks, probe = client.lock_all(NAMES), other.lock_all(NAMES)
        leases: list[holdfast.LeaseAll | None] = []
        sweep = Sweep()
        for step, delay in enumerate(sweep):
            timeout = None if step % 2 else 0  # in one step, or one by one
            leases.clear()
            sweep.hits += interrupted(delay, lambda: leases.append(locks.acquire(timeout=timeout)))  # noqa: B023
            for lease in leases:
                assert lease is not None
                lease.release()
            if locks.held:  # the interrupt came after the last step, before the caller had the leases
                locks.release()

            granted = probe.acquire(timeout=20)
            assert granted is not None, f"stuck after an interrupt at {delay * 1e6:.0f} µs"
            granted.release()
            leases.clear()


def test_an_interrupted_wait_for_one_of_several_releases_all(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        probe = other.lock_all(NAMES)
        held = other.lock("b").acquire()
        assert held is not None
        locks = client.lock_all(NAMES)

        for delay in [step * 1e-3 for step in range(1, 40)]:
            assert interrupted(delay, lambda: locks.acquire(timeout=20))
        held.release()

        granted = probe.acquire(timeout=20)
        assert granted is not None
        for name in NAMES:
            assert len(other.inspect(name).holders) == 1
            assert not other.inspect(name).waiters


def test_an_interrupt_just_after_the_grant_of_the_last_of_several_releases_all(url: str) -> None:
    """Between the grant of the lease and its entry in the list, where a sweep rarely hits."""
    from holdfast.core.acquire_all import _acquire_in_turn

    def start_tracing(frame: Any, event: str, _: object) -> Any:
        if frame.f_code is _acquire_in_turn.__code__:
            return interrupt_after_grant
        return None

    def interrupt_after_grant(frame: Any, event: str, _: object) -> Any:
        result = frame.f_locals.get("result")
        if result is not None and result.lease is not None:
            sys.settrace(None)
            raise Interrupt
        return interrupt_after_grant

    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        locks = client.lock_all(["a"], timeout=20)
        sys.settrace(start_tracing)
        try:
            with pytest.raises(Interrupt):
                locks.acquire()
        finally:
            sys.settrace(None)

        assert not locks.held
        granted = other.lock("a").acquire(timeout=5)
        assert granted is not None
        granted.release()


def test_an_interrupted_release_of_several_is_finished_by_the_keeper(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        locks, probe = client.lock_all(NAMES), other.lock_all(NAMES)
        sweep = Sweep()
        for delay in sweep:
            assert locks.acquire(timeout=20) is not None
            sweep.hits += interrupted(delay, locks.release)

            if locks.held:  # the interrupt came before the release had begun
                locks.release()
            granted = probe.acquire(timeout=20)
            assert granted is not None, f"stuck after an interrupt at {delay * 1e6:.0f} µs"
            granted.release()

        assert client.stats()[:2] == (0, 0)


def test_an_interrupted_with_on_several_leaves_nothing_behind(url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        locks, probe = client.lock_all(NAMES, timeout=20), other.lock_all(NAMES)
        sweep = Sweep()

        def body() -> None:
            with locks as lease:
                lease.check()

        for delay in sweep:
            sweep.hits += interrupted(delay, body)

            if locks.held:  # as with a single lock: the interrupt came before the first instruction of __exit__
                locks.release()
            granted = probe.acquire(timeout=20)
            assert granted is not None, f"stuck after an interrupt at {delay * 1e6:.0f} µs"
            granted.release()

        assert client.stats()[:2] == (0, 0)
