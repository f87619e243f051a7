"""The scripts that each node runs."""

from __future__ import annotations

from holdfast.backends.redis import scripts as redis
from holdfast.backends.redis.scripts import Script

# How long the count of an unused lock is kept: seven days. After that, and after a loss, a node begins with its clock.
COUNT_IDLE = 7 * 86400.0

_SHARED = (
    redis.CONSTANTS,
    f"local COUNT_IDLE = {round(COUNT_IDLE * 1000)}\n",
    redis.text("holdfast.backends.redis", "queue", "layout"),
    redis.text("holdfast.backends.redis", "queue", "common"),
    redis.text("holdfast.backends.redlock", "votes"),
)


def _load(name: str) -> Script:
    return Script.of(f"redlock/{name}", *_SHARED, redis.text("holdfast.backends.redlock", name))


ACQUIRE, RAISE, RELEASE, RENEW = (_load(name) for name in ("acquire", "raise", "release", "renew"))
INSPECT = redis.load("queue", "layout", "common", "inspect")
HELLO = Script.of("redlock/hello", "return 1")
ALL = (ACQUIRE, RAISE, RELEASE, RENEW, INSPECT, HELLO)
