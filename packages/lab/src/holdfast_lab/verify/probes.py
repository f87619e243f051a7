"""Hand-overs without faults: workers queue for one lock, one after the other, and are granted it in turn.

The history gets the position of each waiter (ServerQueued), which the checker of the order needs. A position is known
only if the store shows its queue: then the next worker begins when the one before it is in the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.runtimes.system import now
from holdfast_lab.checking import history as h

from .processes import Process

ROUNDS = 4
_QUEUED_MAX = 10.0  # seconds until a waiter is in the queue
_WAIT_MAX = 60.0
_APART = 0.3  # seconds between waiters whose queue the store does not show


class Handovers(NamedTuple):
    """The probes that were made."""

    lock: str = ""
    is_ordered: bool = False  # the positions of the waiters are known


def probe(
    workers: Sequence[Process],
    lock: str,
    queue: Callable[[str], int | None],
    record: Callable[[h.Event], None],
) -> Handovers:
    """Let the workers queue for this lock several times."""
    is_ordered = True
    position = 0
    holder, *waiters = workers
    for _ in range(ROUNDS):
        holder.call("take", lock=lock, timeout=_WAIT_MAX, hold=_WAIT_MAX)
        _await(lambda: holder.call("state")["taken"], _QUEUED_MAX)
        for number, waiter in enumerate(waiters, start=1):
            waiter.call("take", lock=lock, timeout=_WAIT_MAX, hold=0.0)
            if queue(lock) is None:
                is_ordered = False
                time.sleep(_APART)
                continue
            is_queued = _await(lambda number=number: queue(lock) == number, _QUEUED_MAX)  # type: ignore[misc]  # untyped default
            is_ordered &= is_queued
            position += 1
            if is_queued:
                record(h.ServerQueued(now(), waiter.client, waiter.call("state")["ticket"], lock, position))
        holder.call("drop")
        for worker in workers:
            _await(lambda worker=worker: not worker.call("state")["taking"], _WAIT_MAX)  # type: ignore[misc]  # untyped default
    return Handovers(lock, is_ordered)


def _await(condition: Callable[[], bool], within: float) -> bool:
    end = now() + within
    while not condition():
        if now() > end:
            return False
        time.sleep(0.01)
    return True
