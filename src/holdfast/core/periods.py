"""Periods: which one it is now, on every machine alike, and the mark that says that it has had its run.

Periods are counted from the beginning of Unix time, so that all machines mean the same one; each has a mark of its own.
A machine whose clock is wrong claims the wrong period, once, and takes nothing from the others.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.names import shown
from holdfast.errors import BackendError, ConfigurationError, OutcomeUnknown, QuorumError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine


PERIOD_MIN, PERIOD_MAX = 1, 366 * 86400  # seconds
CLOCKS_DIFFER = 86400.0  # seconds by which clocks may be wrong without a run too many
CLAIMED = "once:"  # before the name of a job, in its mark's

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Period(NamedTuple):
    """Whole seconds; `offset` is how long after a multiple of that each one begins."""

    seconds: int
    offset: int = 0

    def number(self, wall: float) -> int:
        """Of the period that this Unix time is in."""
        return math.floor((wall - self.offset) / self.seconds)


def make_period(period: object, offset: object) -> Period:
    """Check what `once_per` was given.

    Raises:
        ConfigurationError: names the argument and the fix.
    """
    seconds = _seconds("period", period)
    if not PERIOD_MIN <= seconds <= PERIOD_MAX:
        raise ConfigurationError(f"period must be between {PERIOD_MIN} s and 366 days, not {shown(period)}")
    begins = _seconds("offset", offset)
    if not 0 <= begins < seconds:
        raise ConfigurationError(f"offset must be 0 or more and less than the period, not {shown(offset)}")
    return Period(seconds, begins)


async def claim(engine: Engine[Any], name: str, period: Period) -> bool:
    """Whether the present period's run is ours: of all callers everywhere, one is told so, once.

    Raises:
        BackendError: no answer; the period may have been claimed, and nobody will run.
    """
    runtime, number = engine.runtime, period.number(engine.runtime.wall())
    mark, nonce = f"{CLAIMED}{name}@{number}", runtime.nonce()
    keep = 2 * period.seconds + CLOCKS_DIFFER
    try:
        return await engine.backend.advance_register(mark, 1, nonce=nonce, keep=keep, deadline=engine._limit())
    except (OutcomeUnknown, QuorumError) as error:
        try:  # a lost reply: asked again, by the same nonce, it is the same question
            return await engine.backend.advance_register(mark, 1, nonce=nonce, keep=keep, deadline=engine._limit())
        except BackendError as again:
            raise error from again


def _seconds(argument: str, value: object) -> int:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        parts = re.fullmatch(r"\s*(\d{1,9})\s*([smhdw])\s*", value)
        if parts is None:
            raise ConfigurationError(f"{argument} must look like '15m' (s, m, h, d or w), not {shown(value)}")
        return int(parts[1]) * _UNITS[parts[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise ConfigurationError(
            f"{argument} must be whole seconds, a timedelta of such, or text like '15m', not {shown(value)}"
        )
    return int(value)
