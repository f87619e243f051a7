"""Hazard: our own event, in place of threading's, loses a wake-up, or an interrupt leaves its mutex locked."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from holdfast.runtimes import system
from holdfast.runtimes.aio import AsyncioEvent
from holdfast.runtimes.threads import ThreadEvent, run_sync
from tests.support.processes import eventually


def wait(event: ThreadEvent, seconds: float | None = 30.0) -> bool:
    return run_sync(event.wait(None if seconds is None else system.now() + seconds))


def test_an_event_that_is_set_does_not_block() -> None:
    event = ThreadEvent()
    event.set()

    assert wait(event, None)
    event.clear()
    assert not wait(event, 0.0)
    assert not wait(event, 0.01)


def test_set_wakes_all_waiters() -> None:
    event, woken = ThreadEvent(), []
    threads = [threading.Thread(target=lambda: woken.append(wait(event))) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(event._waiters) == 8)

    event.set()

    for thread in threads:
        thread.join()
    assert woken == [True] * 8
    assert not event._waiters


def test_no_wake_up_is_lost_in_a_race() -> None:
    ping, pong = ThreadEvent(), ThreadEvent()

    def answer() -> None:
        for _ in range(2000):
            assert wait(ping)
            ping.clear()
            pong.set()

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(2000):
        ping.set()
        assert wait(pong)
        pong.clear()
    thread.join()


@pytest.mark.parametrize("kind", [ThreadEvent, AsyncioEvent])
async def test_a_wait_ends_when_our_clock_has_passed_its_deadline_and_kernel_timers_have_not(
    kind: Callable[[], ThreadEvent | AsyncioEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a suspend: CLOCK_BOOTTIME has advanced, the kernel's timers for CLOCK_MONOTONIC have not."""
    event, now = kind(), system.now
    until = now() + 600
    suspended = asyncio.get_running_loop().call_later(0.1, monkeypatch.setattr, system, "now", lambda: now() + 600)
    waiting = asyncio.to_thread(wait, event, 600) if isinstance(event, ThreadEvent) else event.wait(until)

    assert not await asyncio.wait_for(waiting, 60)

    suspended.cancel()


class _Interrupt(BaseException):
    pass


def _interrupt(_: int, __: FrameType | None) -> None:
    raise _Interrupt


def test_interrupts_while_it_is_set_leave_it_usable() -> None:
    """With threading.Event this hangs after some thousand interrupts."""
    event, stop, received = ThreadEvent(), threading.Event(), [0]

    def listen() -> None:
        while not stop.is_set():
            if wait(event, 0.05):
                event.clear()
                received[0] += 1

    listener = threading.Thread(target=listen)
    listener.start()
    before = signal.signal(signal.SIGALRM, _interrupt)
    interrupts = 0
    try:
        while interrupts < 500:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00005 + interrupts % 7 * 0.00001)
                while True:
                    event.set()
            except _Interrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    before_last = received[0]
    event.set()
    eventually(lambda: received[0] > before_last)
    stop.set()
    listener.join()
