"""The time of a run: an estimate before it begins, the number of rounds that fit into it, and the time that is left.

The estimate is rough, and is corrected by the cases that have run. Each table has one round at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.measure import now
from benchmarks.measures.waiters import COMMITTED, SETTLE_EACH
from benchmarks.plan import Case, Group

PROCESS = 0.5  # seconds to start and to end the process of a case
SERVERS = {
    "Redis": 0.1,
    "memcached": 0.1,
    "NATS": 0.1,
    "PostgreSQL": 0.8,
    "etcd": 0.6,
    "MariaDB": 1.2,
    "ZooKeeper": 1.5,
}
QUORUM = 5  # servers of a case with several
WAITER = 0.003  # seconds for a turn of one waiter
POLLS, POLLS_MAX = 0.05, 12.0  # seconds more of a waiter that polls and is not ours, and of all of them
LEASES = 4e-4  # seconds to acquire and release one of many leases
INTERPRETER = 0.2  # seconds; three run in preparation, and three for each repetition
_PRIOR = 60.0  # seconds of estimated work that the first estimate counts for


def estimate(case: Case) -> float:
    """Return the expected seconds of one round of this case on a machine that is not busy."""
    numbers, server = case.setting.numbers, case.contender.server
    seconds = PROCESS + (SERVERS.get(server.name, 1.0) if server is not None else 0.0)
    if case.contender.arena.slug == "redlock":
        seconds += SERVERS["Redis"] * (QUORUM - 1)
    if "interpreters" in numbers:
        return seconds + INTERPRETER * 3 * (1 + numbers["interpreters"])
    if "leases" in numbers:
        return seconds + numbers["ttl"] * 2 / 3 + numbers["leases"] * LEASES
    if "waiters" in numbers:
        seconds += numbers["passes"] * numbers["settle"] + numbers["idle"] + numbers["waiters"] * WAITER
        if not case.contender.ours and (case.contender.waits or "").startswith("polls"):
            seconds += min(POLLS_MAX, numbers["waiters"] * POLLS)
        return seconds + (SETTLE_EACH * numbers["waiters"] if case.contender.arena in COMMITTED else 0.0)
    return seconds + numbers.get("seconds", 0.0)


class Schedule:
    """How long a plan takes. With a `budget` in seconds, tables have fewer rounds if they would not fit into it."""

    def __init__(self, plan: Sequence[Group], budget: float | None, clock: Callable[[], float] = now) -> None:
        self._clock, self._budget = clock, budget
        self._begin = clock()
        self._rounds = [sum(estimate(case) for case in group.cases if case.problem is None) for group in plan]
        self._numbers = [group.rounds for group in plan]
        self._index = -1  # of the current table
        self._share = 0.0  # seconds for it
        self._group_begin = self._begin
        self._done = self._done_before = 0.0  # estimated seconds of the cases that have run; in earlier tables

    @property
    def estimated(self) -> float:
        """Seconds of the whole run, as estimated before it begins."""
        whole = sum(seconds * number for seconds, number in zip(self._rounds, self._numbers, strict=True))
        return whole if self._budget is None else max(min(whole, self._budget), sum(self._rounds))

    @property
    def elapsed(self) -> float:
        return self._clock() - self._begin

    @property
    def left(self) -> float:
        """Seconds until the end of the run."""
        least = sum(self._rounds[self._index + 1 :]) + max(0.0, self._current - (self._done - self._done_before))
        if self._budget is None:
            rest = zip(self._rounds[self._index + 1 :], self._numbers[self._index + 1 :], strict=True)
            planned = sum(seconds * number for seconds, number in rest) + self._current * self._current_number
            return max(0.0, planned - (self._done - self._done_before)) * self._slowness
        return max(self._budget - self.elapsed if self._index + 1 < len(self._rounds) else 0.0, least * self._slowness)

    def begin_group(self) -> None:
        """The next table of the plan begins."""
        self._index += 1
        self._group_begin, self._done_before = self._clock(), self._done
        if self._budget is not None:
            # One round of each table is certain. The rest of the time is for further rounds.
            rest = list(zip(self._rounds[self._index :], self._numbers[self._index :], strict=True))
            spare = self._budget - self.elapsed - self._slowness * sum(seconds for seconds, _ in rest)
            further = [seconds * (number - 1) for seconds, number in rest]
            part = further[0] / sum(further) if sum(further) else 0.0
            self._share = self._slowness * rest[0][0] + max(0.0, spare) * part

    def ran(self, case: Case) -> None:
        """One round of this case has run."""
        self._done += estimate(case)

    def has_time_for_round(self, finished: int) -> bool:
        """Whether another round of this table fits, after so many."""
        if self._budget is None or not finished:
            return True
        took = self._clock() - self._group_begin
        return took * (finished + 1) / finished <= self._share

    @property
    def _current(self) -> float:
        return self._rounds[self._index] if 0 <= self._index < len(self._rounds) else 0.0

    @property
    def _current_number(self) -> int:
        return self._numbers[self._index] if 0 <= self._index < len(self._numbers) else 0

    @property
    def _slowness(self) -> float:
        """The ratio of real to estimated times so far."""
        return (self.elapsed + _PRIOR) / (self._done + _PRIOR)
