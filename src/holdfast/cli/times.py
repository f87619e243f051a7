"""Format times and durations."""

from __future__ import annotations

import math
import time

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
_WHOLE_FROM = 10  # seconds; longer durations are shown without tenths


def short(seconds: float) -> str:
    """One unit, at most four characters, rounded down; for a table.

    >>> short(3.25), short(59.9), short(150), short(90_000), short(math.inf)
    ('3.2s', '59s', '2m', '1d', '-')
    """
    if seconds == math.inf:
        return "-"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit[0]}"
    return f"{_seconds(seconds)}s"


def long(seconds: float) -> str:
    """Two units, rounded down.

    >>> long(3.25), long(150), long(90_000), long(math.inf)
    ('3.2 s', '2 min 30 s', '1 d 1 h', 'no end')
    """
    if seconds == math.inf:
        return "no end"
    smaller = (*_UNITS[1:], (1, "s"))
    for (size, unit), (part, part_unit) in zip(_UNITS, smaller, strict=True):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // part)} {part_unit}"
    return f"{_seconds(seconds)} s"


def local_time(at: float) -> str:
    """Format a Unix time as local time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def timestamp(at: float) -> str:
    """Format a Unix time as local time, to the millisecond, for log lines."""
    return f"{local_time(at)}.{int(at % 1 * 1000):03d}"


def _seconds(seconds: float) -> str:
    whole = int(seconds)
    return str(whole) if whole >= _WHOLE_FROM else f"{int(max(0.0, seconds) * 10) / 10:.1f}"
