"""Linux system calls that Python does not wrap. On other systems they do nothing.

Import this module before a fork: a child must not import.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from typing import Final

from holdfast.runtimes import system

_IS_LINUX: Final = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_CLOCK_BOOTTIME, _TFD_FLAGS, _TFD_TIMER_ABSTIME = 7, os.O_CLOEXEC | os.O_NONBLOCK, 1
_POLL_MAX = 0.1  # seconds between two checks of the clock where there is no timerfd

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int) -> None:
    """Have the kernel send this signal to this process when the thread that created it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in place of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def rename(name: bytes) -> None:
    """Set the name that `ps -o comm` shows; at most 15 bytes."""
    _prctl(_PR_SET_NAME, name)


def _prctl(option: int, value: int | bytes) -> None:
    if _IS_LINUX and _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval", ctypes.c_long * 2),
        ("value", ctypes.c_long * 2),
    )


class Alarm:
    """Ends a poll at a time of `system.now()`, whose clock runs while the machine is suspended. poll() stops.

    So after a resume the poll ends at once if the time has passed.
    """

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._at: float | None = None
        self._fd = _libc.timerfd_create(_CLOCK_BOOTTIME, _TFD_FLAGS) if _IS_LINUX else -1
        if self._fd >= 0:
            poll.register(self._fd, select.POLLIN)

    def wait(self, until: float | None) -> list[int]:
        """Return the ready descriptors, at `until` at the latest."""
        self._set(until)
        if self._fd >= 0:
            ready = [fd for fd, _ in self._poll.poll()]
            if self._fd in ready:
                self._at = None  # it has fired, and must be set again
                os.read(self._fd, 8)
        else:
            seconds = _POLL_MAX if until is None else max(0.0, min(_POLL_MAX, until - system.now()))
            ready = [fd for fd, _ in self._poll.poll(seconds * 1000)]
        return ready

    def _set(self, until: float | None) -> None:
        if self._fd < 0 or until == self._at:
            return
        self._at = until
        moment = 0.0 if until is None else max(until, 1e-9)  # zero would disarm the timer
        value = _Itimerspec((0, 0), (int(moment), int(moment % 1 * 1e9)))
        _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(value), None)
