"""A checker that does not take linear time is too slow: the simulator records 100,000 events a second.

The test counts executed lines of Python, so that a busy machine cannot change the result.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from holdfast_lab.checking import CHECKERS, Checker, Promises
from holdfast_lab.checking import history as h
from tests.unit.checking.histories import LOCK


def busy_history(rounds: int) -> h.History:
    """A history with about 40 waiters at a time, which are granted in order. At regular intervals holders pause, crash
    or lose their leases, waiters give up, and the server loses its state.
    """
    history: h.History = []
    queue: list[tuple[str, int]] = []
    for ticket in range(1, rounds + 1):
        now = ticket / 10
        client = f"c{ticket % 50}"
        history += [h.AcquireStarted(now, client, ticket, LOCK, 9.0), h.ServerQueued(now, client, ticket, LOCK)]
        queue.append((client, ticket))
        if len(queue) > 40:
            head, number = queue.pop(0)
            history += [
                h.ServerGranted(now, head, number, LOCK, number),
                h.Granted(now, head, number, LOCK, number, now + 5),
                h.Wrote(now, head, number, LOCK, number, number),
            ]
            if number % 7 == 0:
                history += [h.Paused(now, head), h.Resumed(now, head)]
            elif number % 11 == 0:
                history += [h.Crashed(now, head), h.ServerRemoved(now, head, number, LOCK)]
            elif number % 13 == 0:
                history += [h.Lost(now, head, number, LOCK), h.LossReported(now, head, number, LOCK)]
            elif number % 97 == 0:
                history += [h.StateLost(now)]
            else:
                history += [
                    h.Renewed(now, head, number, LOCK, now + 6),
                    h.ReleaseStarted(now, head, number, LOCK),
                    h.ReleaseEnded(now, head, number, LOCK),
                    h.ServerRemoved(now, head, number, LOCK),
                ]
        if ticket % 17 == 0:
            other, number = queue.pop()
            history += [
                h.AcquireFailed(now, other, number, LOCK, "cancelled"),
                h.ServerRemoved(now, other, number, LOCK),
            ]
    return [
        h.Healed(0.0),
        *history,
        *(h.Leftover(rounds / 10, LOCK, client, granted=False) for client, _ in queue),
    ]


@pytest.mark.parametrize("kind", CHECKERS, ids=lambda kind: kind.name)
def test_a_checker_takes_linear_time(kind: type[Checker]) -> None:
    short, long = busy_history(300), busy_history(3000)

    per_event = lines_run(kind, short) / len(short)
    per_event_of_many = lines_run(kind, long) / len(long)

    assert per_event_of_many < per_event * 1.3
    assert per_event_of_many < 40


def lines_run(kind: type[Checker], history: h.History) -> int:
    checker = kind(Promises(overtaken_max=3))
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for event in history:
            checker.feed(event)
        checker.finish(history[-1].at)
    finally:
        sys.settrace(before)
    return count
