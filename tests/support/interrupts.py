"""Calls that an exception interrupts at a given time, as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator


class Interrupt(KeyboardInterrupt):
    """A class of its own, so that a real Ctrl-C still ends the test run."""


def _interrupt(*_: object) -> None:
    raise Interrupt


@contextlib.contextmanager
def alarms_interrupt() -> Iterator[None]:
    """In the body, `interrupted` can be used."""
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def interrupted(delay: float, call: Callable[[], object]) -> bool:
    """Whether the interrupt, which comes after `delay` seconds, was raised in the call or just after its end."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            call()
        finally:
            _end_timer()  # also after another error, which a later interrupt would hide
    except Interrupt:
        return True
    return False


def _end_timer() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    # If a signal arrives while Python switches between threads, its handler may not run before the thread gets the GIL
    # the next time. That must be here, and not in later code.
    time.sleep(0)
