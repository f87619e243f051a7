"""Does a server's clock go? And how long must it be told to keep an item, so that it does so for at least a ttl?

memcached counts whole seconds on a clock of its own, which it reads once a second. Two things follow.

- An item can go up to 2 s early: 1 s because the clock was read that long ago when it was stored, and 1 s more when the
  moments of reading drift over the edge of a second.
- A server that stood still (SIGSTOP, a frozen virtual machine) may do what is waiting for it *before* it reads its
  clock again. An item that is stored then is too short by as long as it stood still. It is no rare case: of twelve adds
  that were waiting for a server stopped for 4 s, ten went 4 s early (tests/integration/memcached/test_pauses.py).

So a request that starts a timer is sent only when the server was heard within the last QUIET seconds, counted from
when that exchange was *sent*. After a longer silence it is asked for its time first, and again until that is where it
should be, as far as its earlier answers tell. At the very first our own wall clock has to do; if the two disagree, who
knows which is wrong, and it is watched for a moment.

How far behind can it be then? What it says, and what we compare that with, may each be SLACK too little, and the latter
QUIET more, for that long may a look take. Since no clock goes back, that covers every pause in between:

    expires  >=  heard - (2 * SLACK + QUIET) + seconds  >=  heard + QUIET + ttl  >=  sent + ttl
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.clock import DRIFT
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.backends.memcached.port import Life

QUIET = 0.5  # seconds since it was heard, after which a server is asked for its time first
TRUSTED = 60.0  # seconds since it was asked, after which it is asked again although it was heard all the time
SLACK = 2.0  # seconds by which its time can be behind although nothing is wrong
SETTLES = 0.25  # seconds for which a server has to answer before we say that it ticks, if nothing else shows it
EARLY = 5  # seconds for which it is told to keep an item longer: 2 * (SLACK + QUIET)
SECONDS_MAX = 30 * 86400  # more than this, memcached takes for a date


def seconds_for(ttl: float) -> int:
    """For how long to store an item that must live for a ttl.

    Raises:
        ConfigurationError: memcached cannot be told to.
    """
    seconds = math.ceil(ttl) + EARLY
    if seconds > SECONDS_MAX:
        raise ConfigurationError(
            f"ttl, with the lock delay, must be at most {SECONDS_MAX - EARLY} s on memcached, not {ttl:g}: it takes "
            "more than 30 days for a date; leases are renewed by themselves, so a short ttl (the default is 30) serves "
            "long work too"
        )
    return seconds


class _Watched(NamedTuple):
    """A server of which nothing is known but that it answers."""

    first: tuple[int, float]  # its time, and when its first answer came: it may have stood still until then
    last: float  # when it was asked last


class Pulse:
    """One server, as far as one client knows it."""

    def __init__(self) -> None:
        self.heard = -math.inf  # when the last exchange was sent at which its clock is known to have gone
        self.life: Life | None = None
        self.evictions = 0
        self._ahead: float | None = None  # its time minus ours, at best
        self._at = 0.0
        self._watched: _Watched | None = None

    def is_in_doubt(self, now: float) -> bool:
        """It has to be asked for its time before something is sent that starts a timer there."""
        return now - self.heard > QUIET or now - self._at > TRUSTED

    def was_heard(self, sent: float, life: Life) -> None:
        """It has answered something. That says that its clock goes only if it was seen to go shortly before."""
        if life != self.life:
            self.life, self.heard = life, -math.inf
            self._ahead = self._watched = None  # started anew, its time can be any other
        elif self.heard < sent <= self.heard + QUIET:
            self.heard = sent

    def is_going(self, time: int, sent: float, now: float, wall: float) -> bool:
        """Whether this answer to "what time is it?" shows a clock that goes; if not, ask again in a moment."""
        watched, self._watched = self._watched, None
        if now - sent > QUIET:
            return False  # who knows when that was
        ahead = time - now
        if self._ahead is None:
            if abs(time - wall) > SLACK:
                first = (time, now) if watched is None or sent - watched.last > QUIET else watched.first
                self._watched = _Watched(first, sent)
                if time == first[0] and sent - first[1] < SETTLES:
                    return False
            self._ahead, self._at = ahead, now
        # It may go a little slower than ours. What it was ahead at best, it still is but for that.
        least = self._ahead - DRIFT * (now - self._at)
        self._ahead, self._at = max(ahead, least), now
        if ahead <= least - SLACK:
            return False
        self.heard = max(self.heard, sent)
        return True
