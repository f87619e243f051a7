"""What a soak has observed, and the judgement on it.

An observation says that a lease was held at a moment *before* the process asked. A lease that was once found not to be
held is never held again, so it was held from its grant until the last observation, whatever paused its process later.
These intervals are what the checkers of `holdfast.checking` see; they can miss an overlap, but never invent one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checking import Judge, Promises, Verdict, report
from holdfast.checking import history as h
from holdfast.checking.checkers import GrowingFences, MutualExclusion, SingleGrants
from holdfast.guarantees import Guarantees


@dataclass
class Lease:
    """All that was observed of one lease."""

    granted: dict[str, Any]
    held_until: float | None = None
    how: str = ""  # released, lost, unknown; "" if its process died
    told: int = 0


@dataclass
class Observations:
    """The leases of all processes of one soak, by ticket."""

    leases: dict[int, Lease] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Iterable[Path]) -> Observations:
        found = cls()
        told: Counter[tuple[str, str, int]] = Counter()
        for file in files:
            for line in file.read_text().splitlines():
                fact = json.loads(line)
                kind = fact["kind"]
                if kind == "told":
                    told[fact["client"], fact["lock"], fact["fence"]] += 1
                elif kind == "granted":
                    found.leases[fact["ticket"]] = Lease(fact)
                elif kind == "held":
                    lease = found.leases[fact["ticket"]]
                    lease.held_until = max(lease.held_until or 0.0, fact["at"])
                else:
                    found.leases[fact["ticket"]].how = fact["how"]
        for lease in found.leases.values():
            granted = lease.granted
            lease.told = told[granted["client"], granted["lock"], granted["fence"]]
        return found

    @property
    def lost(self) -> int:
        return sum(lease.how == "lost" for lease in self.leases.values())

    def history(self) -> h.History:
        """What the checkers look at: of each lease the interval in which it was certainly held."""
        events: list[tuple[float, int, h.Event]] = []
        for ticket, lease in self.leases.items():
            if lease.held_until is None:
                continue  # over before its process could look at it once
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
            # At equal times a release comes first: two intervals that only touch do not overlap. That of one lease may
            # be empty, and has to begin before it ends all the same.
            events.append((start, 1, grant))
            events.append((end, 0 if end > start else 2, h.ReleaseStarted(end, client, ticket, lock)))
        return [event for _, _, event in sorted(events, key=lambda entry: entry[:2])]

    def untold(self, closed: set[str]) -> list[str]:
        """Losses that were reported not at all or twice, in processes that ended in order."""
        problems = []
        for lease in self.leases.values():
            granted = lease.granted
            client, name = granted["client"], f"{granted['lock']!r} (fence {granted['fence']}) of {granted['client']}"
            if client not in closed or granted["grouped"]:
                continue
            if lease.how == "lost" and lease.told != 1:
                problems.append(f"the loss of {name} was reported {lease.told} times")
            elif lease.how == "released" and lease.told:
                problems.append(f"{name} was released, and reported as lost")
        return problems


def judge(observations: Observations, guarantees: Guarantees) -> tuple[Verdict, str]:
    """The verdict of the checkers, and its report."""
    promises = Promises.of(guarantees, sees_server=False, tells=False, clock_error=0.0)
    history = observations.history()
    judging = Judge(promises, (MutualExclusion, GrowingFences, SingleGrants))
    for event in history:
        judging.feed(event)
    verdict = judging.verdict()
    return verdict, report(history, verdict)
