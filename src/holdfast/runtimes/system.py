"""The operating system for both runtimes: the clock, randomness and forks."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable

from holdfast.core.events import logger
from holdfast.core.ports import IdleCallbacks

# Leases expire on the server while this machine is suspended, so the clock must count that time. On Linux that is
# CLOCK_BOOTTIME (CLOCK_MONOTONIC does not); on macOS clock_gettime's CLOCK_MONOTONIC does, and on Windows, which has
# no clock_gettime, time.monotonic does. A partial, because it is faster than a function.
now: Callable[[], float] = (
    functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    if hasattr(time, "clock_gettime")
    else time.monotonic
)


process_ends = False  # True at the end of the process: from Python 3.12 on, no thread can be started then

CLOCK_CHECK_INTERVAL = 1.0  # seconds: the longest timer of the kernel, which does not count the time of a suspend


def nonce() -> str:
    """32 hexadecimal digits from the kernel: unguessable, and different after a fork."""
    try:
        return spare_nonces.pop()  # atomic
    except IndexError:
        first, *others = os.urandom(16 * _NONCES_AT_ONCE).hex(" ", 16).split()
        spare_nonces.extend(others)
        return first


# One system call gives many nonces, because a system call for each would take a noticeable part of an acquire.
spare_nonces: list[str] = []
_NONCES_AT_ONCE = 64


def jitter() -> float:
    """A random number from 0 up to 1."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def process_info() -> str:
    """This process as JSON, for operators who inspect a lock."""
    import json

    program = _program or (os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python")
    return json.dumps({"host": _host(), "pid": os.getpid(), "program": program})


def process_id() -> str:
    """16 hexadecimal digits that no other process has. Pids are reused, and containers share pids and host names."""
    return _process_ids.setdefault("", os.urandom(8).hex())  # atomic, so all threads get the same one


_process_ids: dict[str, str] = {}  # at most one; empty before the first use and in a forked child
caller_numbers = itertools.count(1)  # one for each thread or task that uses locks

_program = ""


def set_program(name: str) -> None:
    """Set the program name that clients report from now on: that of the command that `holdfast run` runs."""
    global _program
    _program = name


def _host() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket  # `platform` would run other programs

    return socket.gethostname()


class SystemRuntime(IdleCallbacks):
    """The part of both runtimes that is the same."""

    now = staticmethod(now)
    wall = staticmethod(time.time)
    nonce = staticmethod(nonce)
    spare_nonces = spare_nonces
    jitter = staticmethod(jitter)
    process_info = staticmethod(process_info)
    process_id = staticmethod(process_id)


def call_user(function: Callable[[], object]) -> object:
    """Call a function of the user. Its exceptions are logged and go no further."""
    try:
        return function()
    except Exception:
        logger().exception("an on_lost or on_revoke callback failed")
        return None


class Forkable:
    """A base of objects that have work to do at a fork."""

    def _before_fork(self) -> None:
        """Called in the parent before a fork."""

    def _after_fork_in_parent(self) -> None:
        """Called in the parent after a fork."""

    def _after_fork(self) -> None:
        """Called in the forked child."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()


def on_fork(target: Forkable) -> None:
    """Call the methods of `target` at every fork of this process while `target` exists."""
    _forkables.add(target)


def _call_at_fork(method: str) -> None:
    for target in list(_forkables):
        getattr(target, method)()


def after_fork_in_child(function: Callable[[], object]) -> None:
    """Call a function in every forked child of this process. Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


after_fork_in_child(spare_nonces.clear)
after_fork_in_child(_process_ids.clear)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=functools.partial(_call_at_fork, "_before_fork"),
        after_in_parent=functools.partial(_call_at_fork, "_after_fork_in_parent"),
        after_in_child=functools.partial(_call_at_fork, "_after_fork"),
    )
