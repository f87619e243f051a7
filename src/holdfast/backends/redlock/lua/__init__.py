"""The Lua scripts that run on each node."""

from __future__ import annotations

from holdfast.backends.redis import lua as redis
from holdfast.backends.redis.lua import Script

# Seconds that the count of an unused lock is kept. After that, and after a loss of data, a node starts from its clock.
COUNT_IDLE = 7 * 86400.0


def ending(*, is_over: bool, is_answered: bool) -> int:
    """The argument `is_over` of RELEASE: whether the ticket has ended, and whether an old request may still arrive."""
    return (1 if is_answered else 2) if is_over else 0


def _load(name: str, *, first: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Script:
    """`first` are the fast paths. They precede the functions that handle waiters, because usually no ticket waits."""

    def own(*names: str) -> list[str]:
        return [redis.text(__package__, text) for text in names]

    head = (redis.CONSTANTS, f"local COUNT_IDLE = {round(COUNT_IDLE * 1000)}\n", *own("layout", "votes", *first))
    publish = redis.text("holdfast.backends.redis.lua", "queue", "publish")
    return Script.of(f"redlock/{name}", *head, publish, *own("waiters", *after, name))


ACQUIRE = _load("acquire", first=("acquire_free",))
RAISE = _load("raise", after=("show_fence",))
RELEASE = _load("release", first=("release_unwaited",))
RENEW = _load("renew", after=("show_fence",))
INSPECT = _load("inspect")
HELLO = Script.of("redlock/hello", "return 1")
ADVANCE, READ = (Script.of(f"redlock/{name}", redis.text(__package__, name)) for name in ("advance", "read"))
ALL = (ACQUIRE, RAISE, RELEASE, RENEW, INSPECT, HELLO, ADVANCE, READ)
