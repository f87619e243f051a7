"""Does a server's clock go? And how long must it be told to keep an item, so that it does so for at least a ttl?

memcached counts whole seconds on a clock of its own, which it reads once a second. Two things follow.

- An item can go up to 2 s early: 1 s because the clock was read that long ago when it was stored, and 1 s more when the
  moments of reading drift over the edge of a second.
- A server that stood still (SIGSTOP, a frozen virtual machine) may do what is waiting for it *before* it reads its
  clock again. An item that is stored then is too short by as long as it stood still. It is no rare case: of twelve adds
  that were waiting for a server stopped for 4 s, ten went 4 s early (tests/integration/memcached/test_pauses.py).

So a request that starts a timer is sent only when the server was heard within the last QUIET seconds, counted from
when that exchange was *sent*. After a longer silence it is asked for its time first, and again until that is where it
should be, as far as its earlier answers tell; at the very first, as far as our wall clock tells. It may then be behind
by two times SLACK: what we compare, and what we compare it with, can each be that much off. And since no clock goes
back, this covers every pause in between:

    expires  >=  its time when heard + seconds  >=  heard - 2 * SLACK + ttl + EARLY  >=  sent + ttl
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.core.clock import DRIFT
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.backends.memcached.port import Life

QUIET = 1.0  # seconds since it was heard, after which a server is asked for its time first
SLACK = 2.0  # seconds by which its time can be behind although nothing is wrong
EARLY = 5  # seconds for which it is told to keep an item longer: 2 * SLACK + QUIET
SECONDS_MAX = 30 * 86400  # more than this, memcached takes for a date


def seconds_for(ttl: float) -> int:
    """For how long to store an item that must live for a ttl.

    Raises:
        ConfigurationError: memcached cannot be told to.
    """
    seconds = math.ceil(ttl) + EARLY
    if seconds > SECONDS_MAX:
        raise ConfigurationError(
            f"ttl must be at most {SECONDS_MAX - EARLY} s on memcached, not {ttl:g}: it takes more than 30 days for a "
            "date; leases are renewed by themselves, so a short ttl (the default is 30) serves long work too"
        )
    return seconds


class Pulse:
    """One server, as far as one client knows it."""

    def __init__(self) -> None:
        self.heard = -math.inf  # when the last exchange was sent at which its clock is known to have gone
        self.life: Life | None = None
        self.evictions = 0
        self._ahead: float | None = None  # its time minus ours, at best
        self._at = 0.0

    def was_heard(self, sent: float, life: Life) -> None:
        """It has answered something. That says that its clock goes only if it was seen to go shortly before."""
        if life != self.life:
            self.life, self._ahead, self.heard = life, None, -math.inf  # started anew, its time can be any other
        elif self.heard < sent <= self.heard + QUIET:
            self.heard = sent

    def is_going(self, time: int, sent: float, now: float, wall: float) -> bool:
        """Whether this answer to "what time is it?" shows a clock that goes; if not, ask again in a moment."""
        ahead = time - now
        if self._ahead is None:
            # Nothing to compare it with but our own wall clock. If they differ, that may be why; a second look tells.
            self._ahead, self._at = ahead, now
            goes = abs(time - wall) <= SLACK
        else:
            # It may go a little slower than ours. What it was ahead at best, it still is but for that.
            least = self._ahead - DRIFT * (now - self._at)
            goes = ahead > least - SLACK
            if ahead > least:
                self._ahead, self._at = ahead, now
        if goes:
            self.heard = max(self.heard, sent)
        return goes
