"""Checks that a server's clock is running, and computes for how long an item must be stored to outlive a ttl.

memcached counts whole seconds on its own clock, which it reads once a second. This has two consequences.

- An item can expire up to 2 s early: 1 s because the clock was read up to 1 s before it was stored, and 1 s more when
  the reading times drift over the edge of a second.
- A server that was paused (SIGSTOP, a frozen virtual machine) may execute waiting requests *before* it reads its clock
  again. An item that is stored then expires early by the length of the pause. This is common: of twelve adds that
  waited for a server stopped for 4 s, ten expired 4 s early (tests/integration/memcached/test_pauses.py).

Therefore a request that starts a timer is sent only if the server's clock was confirmed within the last SILENCE_MAX
seconds, counted from when that exchange was *sent*. After a longer silence the server is first asked for its time,
repeatedly until the time is where earlier answers predict it. For the first answer there is only our own wall clock; if
the two disagree, either may be wrong, so the server is observed for a moment.

The clock can then still be behind: the reported time and the time that we compare it with may each be too low by SLACK,
and the latter by SILENCE_MAX more, because an exchange may take that long. No clock goes back, so this covers every
pause in between:

    expires  >=  confirmed - (2 * SLACK + SILENCE_MAX) + seconds  >=  confirmed + SILENCE_MAX + ttl  >=  sent + ttl
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.clock import DRIFT
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.backends.memcached.port import ServerRun

SILENCE_MAX = 0.5  # seconds since the clock was confirmed, after which the server is first asked for its time
CHECK_INTERVAL = 60.0  # seconds after which the server is asked for its time even if it answered all the time
SLACK = 2.0  # seconds by which a running clock can be behind
OBSERVE_MIN = 0.25  # seconds of answers after which a clock counts as running if nothing else shows it
MARGIN = 5  # seconds for which an item is stored longer than its ttl: 2 * (SLACK + SILENCE_MAX)
SECONDS_MAX = 30 * 86400  # memcached takes a larger number for a Unix time


def seconds_for(ttl: float) -> int:
    """The number of seconds for which to store an item that must live for a ttl.

    Raises:
        ConfigurationError: the ttl is longer than memcached accepts.
    """
    seconds = math.ceil(ttl) + MARGIN
    if seconds > SECONDS_MAX:
        raise ConfigurationError(
            f"ttl, with the lock delay, must be at most {SECONDS_MAX - MARGIN} s on memcached, not {ttl:g}: it "
            "takes more than 30 days for a date; leases are renewed automatically, so a short ttl (the default is 30) "
            "is enough for long work"
        )
    return seconds


class _Observation(NamedTuple):
    """A server whose clock is not confirmed and disagrees with ours."""

    first: tuple[int, float]  # its time, and when its first answer arrived: it may have been paused until then
    last: float  # when the last request was sent


class ClockCheck:
    """The clock of one server, as one client has observed it."""

    def __init__(self) -> None:
        self.confirmed_at = -math.inf  # when the last exchange was sent that showed a running clock
        self.run: ServerRun | None = None
        self.evictions = 0
        self._offset: float | None = None  # the largest observed difference: its time minus ours
        self._offset_at = 0.0
        self._observation: _Observation | None = None

    def needs_check(self, now: float) -> bool:
        """The server must be asked for its time before a request that starts a timer."""
        return now - self.confirmed_at > SILENCE_MAX or now - self._offset_at > CHECK_INTERVAL

    def answered(self, sent: float, run: ServerRun) -> None:
        """Note an answer to any request. It confirms the clock only if the clock was confirmed shortly before."""
        if run != self.run:
            self.run, self.confirmed_at = run, -math.inf
            self._offset = self._observation = None  # the time of a new run can be any
        elif self.confirmed_at < sent <= self.confirmed_at + SILENCE_MAX:
            self.confirmed_at = sent

    def is_ticking(self, time: int, sent: float, now: float, wall: float) -> bool:
        """Whether this reported time shows a running clock. If not, ask again after a moment."""
        observation, self._observation = self._observation, None
        if now - sent > SILENCE_MAX:
            return False  # the server may have read its clock at any time in between
        offset = time - now
        if self._offset is None:
            if abs(time - wall) > SLACK:
                if observation is None or sent - observation.last > SILENCE_MAX:
                    observation = _Observation((time, now), sent)
                self._observation = observation._replace(last=sent)
                if time == observation.first[0] and sent - observation.first[1] < OBSERVE_MIN:
                    return False
            self._offset, self._offset_at = offset, now
        # It may run a little slower than ours. Apart from that, its largest difference still holds.
        least = self._offset - DRIFT * (now - self._offset_at)
        self._offset, self._offset_at = max(offset, least), now
        if offset <= least - SLACK:
            return False
        self.confirmed_at = max(self.confirmed_at, sent)
        return True
