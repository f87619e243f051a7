"""The observations of a soak, and the verdict on them.

An observation states that a lease was held at a time *before* the process checked it. A lease that is not held is never
held again, so it was held from its grant to the last observation, even if its process was paused later. The checkers of
`holdfast_lab.checking` get these intervals; they can miss an overlap, but never report a false one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.guarantees import Guarantees
from holdfast_lab.checking import Judge, Promises, Verdict, report
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import GrowingFences, MutualExclusion, SingleGrants


@dataclass
class Lease:
    """The observations of one lease."""

    granted: dict[str, Any]
    held_until: float | None = None
    outcome: str = ""  # released, lost, unknown; "" if its process died
    reports: int = 0


@dataclass
class Observations:
    """The leases of all processes of one soak, by ticket."""

    leases: dict[int, Lease] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Iterable[Path]) -> Observations:
        observations = cls()
        reports: Counter[tuple[str, str, int]] = Counter()
        for file in files:
            for line in file.read_text().splitlines():
                fact = json.loads(line)
                kind = fact["kind"]
                if kind == "loss reported":
                    reports[fact["client"], fact["lock"], fact["fence"]] += 1
                elif kind == "granted":
                    observations.leases[fact["ticket"]] = Lease(fact)
                elif kind == "held":
                    lease = observations.leases[fact["ticket"]]
                    lease.held_until = max(lease.held_until or 0.0, fact["at"])
                else:
                    observations.leases[fact["ticket"]].outcome = fact["outcome"]
        for lease in observations.leases.values():
            granted = lease.granted
            lease.reports = reports[granted["client"], granted["lock"], granted["fence"]]
        return observations

    @property
    def lost(self) -> int:
        return sum(lease.outcome == "lost" for lease in self.leases.values())

    def history(self) -> h.History:
        """The history for the checkers: for each lease the interval in which it was certainly held."""
        events: list[tuple[float, int, h.Event]] = []
        for ticket, lease in self.leases.items():
            if lease.held_until is None:
                continue  # ended before its process could check it
            granted = lease.granted
            client, lock, start = granted["client"], granted["lock"], granted["at"]
            end = max(lease.held_until, start)
            grant = h.Granted(
                start,
                client,
                ticket,
                lock,
                granted["fence"],
                limit=granted["limit"],
                exclusive=granted["exclusive"],
            )
            # At equal times a release comes first, so that two intervals that only touch do not overlap. An empty
            # interval of one lease still begins before it ends.
            events.append((start, 1, grant))
            events.append((end, 0 if end > start else 2, h.ReleaseStarted(end, client, ticket, lock)))
        return [event for _, _, event in sorted(events, key=lambda entry: entry[:2])]

    def misreported(self, closed: set[str]) -> list[str]:
        """Losses that were not reported exactly once, in processes that ended regularly."""
        problems = []
        for lease in self.leases.values():
            granted = lease.granted
            client, name = granted["client"], f"{granted['lock']!r} (fence {granted['fence']}) of {granted['client']}"
            if client not in closed or granted["grouped"]:
                continue
            if lease.outcome == "lost" and lease.reports != 1:
                problems.append(f"the loss of {name} was reported {lease.reports} times")
            elif lease.outcome == "released" and lease.reports:
                problems.append(f"{name} was released but reported lost")
        return problems


def judge(observations: Observations, guarantees: Guarantees) -> tuple[Verdict, str]:
    """The verdict of the checkers, and its report."""
    promises = Promises.of(guarantees, sees_server=False, reports_losses=False, clock_error=0.0)
    history = observations.history()
    judging = Judge(promises, (MutualExclusion, GrowingFences, SingleGrants))
    for event in history:
        judging.feed(event)
    verdict = judging.verdict()
    return verdict, report(history, verdict)
