"""Periods of `once_per`: the number of the present period, and the register that records its run.

Periods are counted from the beginning of Unix time, so that all machines agree on the number; each has a register of
its own. A machine with a wrong clock claims a wrong period once, and does not affect other periods.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.names import check_duration, shown
from holdfast.errors import BackendError, ConfigurationError, OutcomeUnknown, QuorumError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine


PERIOD_MIN, PERIOD_MAX = 1, 366 * 86400  # seconds
CLOCKS_DIFFER = 86400.0  # seconds by which clocks may be wrong without a second run
CLAIMED = "once:"  # prefix of the register of a job


class Period(NamedTuple):
    """A period in whole seconds. Each begins `offset` seconds after a multiple of that."""

    seconds: int
    offset: int = 0

    def number(self, wall: float) -> int:
        """The number of the period that contains this Unix time."""
        return math.floor((wall - self.offset) / self.seconds)


def make_period(period: object, offset: object) -> Period:
    """Check the arguments of `once_per`.

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
    """Claim the run of the present period. Of all callers on all machines, one gets True, once.

    Raises:
        BackendError: no answer; the period may have been claimed, and then no caller runs.
    """
    runtime, number = engine.runtime, period.number(engine.runtime.wall())
    register, nonce = f"{CLAIMED}{name}@{number}", runtime.nonce()
    keep, advance = 2 * period.seconds + CLOCKS_DIFFER, engine.backend.advance_register
    try:
        return await advance(register, 1, nonce=nonce, keep=keep, deadline=engine.request_deadline())
    except (OutcomeUnknown, QuorumError) as error:
        try:  # a lost reply: the request is repeated with the same nonce, so it is the same request
            return await advance(register, 1, nonce=nonce, keep=keep, deadline=engine.request_deadline())
        except BackendError as again:
            raise error from again


def _seconds(argument: str, value: object) -> int:
    seconds = check_duration(argument, value)
    if not seconds.is_integer():
        raise ConfigurationError(f"{argument} must be whole seconds, not {shown(value)}")
    return int(seconds)
