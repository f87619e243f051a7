"""The observations of a soak, and the verdict on them. The journals and the checks are those of `holdfast verify`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from holdfast.guarantees import Guarantees
from holdfast_lab.checking import Verdict, report
from holdfast_lab.checking import history as h
from holdfast_lab.verify.journal import read
from holdfast_lab.verify.judging import judge_beliefs
from holdfast_lab.verify.merge import Histories, merge


class Observations(NamedTuple):
    """The leases of all processes of one soak."""

    histories: Histories

    @classmethod
    def read(cls, folder: Path) -> Observations:
        return cls(merge(read(folder), []))

    @property
    def leases(self) -> int:
        return sum(isinstance(event, h.Granted) for event in self.histories.complete)

    @property
    def lost(self) -> int:
        return sum(outcome == "lost" for outcome in self._outcomes().values())

    def misreported(self, closed: set[str]) -> list[str]:
        """Losses that were not reported exactly once, in processes that ended regularly."""
        complete = self.histories.complete
        reports = Counter(event.ticket for event in complete if isinstance(event, h.LossReported))
        outcomes = self._outcomes()
        problems = []
        for event in complete:
            if not isinstance(event, h.Granted) or event.client not in closed or event.group is not None:
                continue
            name = f"{event.lock!r} (fence {event.fence}) of {event.client}"
            outcome, times = outcomes.get(event.ticket), reports[event.ticket]
            if outcome == "lost" and times != 1:
                problems.append(f"the loss of {name} was reported {times} times")
            elif outcome == "released" and times:
                problems.append(f"{name} was released but reported lost")
        return problems

    def _outcomes(self) -> dict[int, str]:
        return {event.ticket: event.outcome for event in self.histories.complete if isinstance(event, h.ReleaseEnded)}


def judge(observations: Observations, guarantees: Guarantees) -> tuple[Verdict, str]:
    """The verdict of the checkers, and its report."""
    verdict = judge_beliefs(observations.histories, guarantees)
    return verdict, report(observations.histories.beliefs, verdict)
