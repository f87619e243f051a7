"""The few calls to the kernel that Python has no words for. All of them are Linux's; elsewhere they do nothing.

Loaded before any fork: a child must not have to import.
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
_LOOK_MAX = 0.1  # seconds between two looks at the clock where the kernel cannot wake us by it

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int) -> None:
    """Have the kernel send us this signal when the thread that made us has died."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, in place of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def rename(name: bytes) -> None:
    """What `ps -o comm` calls us; at most 15 bytes."""
    if _IS_LINUX:
        _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


def _prctl(option: int, value: int) -> None:
    if _IS_LINUX and _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval", ctypes.c_long * 2),
        ("value", ctypes.c_long * 2),
    )


class Alarm:
    """Ends a poll at a moment of `system.now()`, whose clock goes on while the machine is suspended; poll's does not.

    So after a resume it rings at once, not after what was left of the wait.
    """

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._at: float | None = None
        self._fd = _libc.timerfd_create(_CLOCK_BOOTTIME, _TFD_FLAGS) if _IS_LINUX else -1
        if self._fd >= 0:
            poll.register(self._fd, select.POLLIN)

    def wait(self, until: float | None) -> list[int]:
        """The descriptors that are ready, at `until` at the latest."""
        self._set(until)
        if self._fd >= 0:
            ready = [fd for fd, _ in self._poll.poll()]
            if self._fd in ready:
                self._at = None  # it has rung, and is silent until it is set again
                os.read(self._fd, 8)
        else:
            left = _LOOK_MAX if until is None else max(0.0, min(_LOOK_MAX, until - system.now()))
            ready = [fd for fd, _ in self._poll.poll(left * 1000)]
        return ready

    def _set(self, until: float | None) -> None:
        if self._fd < 0 or until == self._at:
            return
        self._at = until
        moment = 0.0 if until is None else max(until, 1e-9)  # all zero would turn it off
        value = _Itimerspec((0, 0), (int(moment), int(moment % 1 * 1e9)))
        _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(value), None)
