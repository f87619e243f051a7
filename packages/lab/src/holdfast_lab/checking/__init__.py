"""Check what a lock did: histories, linear-time checkers and reports, shared by `sim` and `verify`.

A history (history.py) is a list of events. `judge` checks it against `Promises` and returns a `Verdict`. `report`
prints the verdict with a `timeline`, and `svg` draws it. All functions here are pure: no clock, no I/O, no threads.
"""

from .checkers import CHECKERS, Checker, Violation
from .promises import Promises
from .report import Judge, Statistics, Verdict, judge, report
from .svg import svg
from .timeline import timeline

__all__ = [
    "CHECKERS",
    "Checker",
    "Judge",
    "Promises",
    "Statistics",
    "Verdict",
    "Violation",
    "judge",
    "report",
    "svg",
    "timeline",
]
