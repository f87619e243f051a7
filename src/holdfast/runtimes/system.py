"""What both runtimes take from the operating system: the clock, randomness, and a word about forks."""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from holdfast.core.events import logger

# Leases run out on the server while this machine is suspended, so our clock must go on too. On Linux that is
# CLOCK_BOOTTIME (CLOCK_MONOTONIC stands still); on macOS clock_gettime's CLOCK_MONOTONIC goes on, and on Windows, which
# has no clock_gettime, so does time.monotonic. Not a `def`: it is called all the time.
now: Callable[[], float] = (
    functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    if hasattr(time, "clock_gettime")
    else time.monotonic
)


process_ends = False  # from Python 3.12 on no thread can be started then

CLOCK_CHECK_INTERVAL = (
    1.0  # seconds: a timer of the kernel's, which stands still during a suspend, is set for no longer
)


def nonce() -> str:
    """32 hexadecimal digits from the kernel: unguessable, and different after a fork."""
    try:
        return _nonces.pop()  # one step, whatever other threads do
    except IndexError:
        mine, *others = os.urandom(16 * _NONCES_AT_ONCE).hex(" ", 16).split()
        _nonces.extend(others)
        return mine


# The kernel is asked for many at once: a system call for each would be felt.
_nonces: list[str] = []
_NONCES_AT_ONCE = 64


def jitter() -> float:
    """From 0 up to 1."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def process_info() -> str:
    """This process as JSON, for people who look at who holds a lock."""
    import json

    program = _program or (os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python")
    return json.dumps({"host": _host(), "pid": os.getpid(), "program": program})


_program = ""


def set_program(name: str) -> None:
    """Let clients made from now on report this as their program: that of a command which works under our locks."""
    global _program
    _program = name


def _host() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket  # not `platform`, which asks other programs

    return socket.gethostname()


def call_user(function: Callable[[], object]) -> object:
    """Call a user's function whose failure is its own: it is logged, and nothing of ours stops for it."""
    try:
        return function()
    except Exception:
        logger().exception("an on_lost callback failed")
        return None


class Forkable(Protocol):
    """Something that must know of forks. Its last word in the child is that it belongs to the parent."""

    def _before_fork(self) -> None: ...
    def _after_fork_in_parent(self) -> None: ...
    def _after_fork(self) -> None: ...


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()


def on_fork(thing: Forkable) -> None:
    """Tell `thing` of every fork of this process while it lives."""
    _forkables.add(thing)


def _tell(of: str) -> Callable[[], None]:
    def tell() -> None:
        for thing in list(_forkables):
            getattr(thing, of)()

    return tell


def after_fork_in_child(function: Callable[[], object]) -> None:
    """Call it in every forked child of this process. Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


after_fork_in_child(_nonces.clear)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_tell("_before_fork"),
        after_in_parent=_tell("_after_fork_in_parent"),
        after_in_child=_tell("_after_fork"),
    )
