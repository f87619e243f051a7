"""Is a job run once in each period, by one of the clients that claim it?"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from holdfast_lab.checking.history import ClaimEnded, ClaimStarted, Crashed, Healed, StateLost
from holdfast_lab.checking.promises import Promises

from .base import Checker

_Run: TypeAlias = tuple[str, int]  # a job and the number of a period


class OncePerPeriod(Checker):
    """Of all clients that claim a job's run in one period, at most one gets it, even if that client crashes.

    In a healed world exactly one gets it, if the period was first claimed after the healing and all claims were
    answered. Claims that the server lost with its state do not count.
    """

    name = "single runs"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: float | None = None
        self._open: dict[int, ClaimStarted] = {}
        self._first: dict[_Run, ClaimStarted] = {}
        self._ours: dict[_Run, ClaimEnded] = {}
        self._refused: dict[_Run, ClaimEnded] = {}
        self._unclear: set[_Run] = set()  # a claim without an answer may have got the run
        self._excused: set[_Run] = set()
        self._of_client: defaultdict[str, list[ClaimStarted]] = defaultdict(list)  # since the client last crashed
        self.on = {
            ClaimStarted: self._claim_started,
            ClaimEnded: self._claim_ended,
            Crashed: self._crashed,
            StateLost: self._state_lost,
            Healed: self._was_healed,
        }

    @property
    def was_tested(self) -> bool:
        return bool(self._first)

    def _claim_started(self, event: ClaimStarted) -> None:
        self._open[event.ticket] = event
        self._first.setdefault((event.lock, event.number), event)
        self._of_client[event.client].append(event)

    def _claim_ended(self, event: ClaimEnded) -> None:
        self._open.pop(event.ticket, None)
        run = (event.lock, event.number)
        if event.outcome == "not ours":
            self._refused.setdefault(run, event)
        elif event.outcome != "ours":
            self._unclear.add(run)
        elif run not in self._excused:
            before = self._ours.setdefault(run, event)
            if before is not event:
                message = (
                    f"{event.client} got the run of {event.lock!r} in period {event.number}, "
                    f"which {before.client} had got before"
                )
                self.violated(event.at, event.lock, message, before, event)

    def _crashed(self, event: Crashed) -> None:
        for claim in self._of_client.pop(event.client, ()):
            if self._open.pop(claim.ticket, None) is not None:
                self._unclear.add((claim.lock, claim.number))

    def _state_lost(self, event: StateLost) -> None:
        if event.kind == "data" and event.majority:
            self._excused |= self._first.keys()  # also claims made before whose answers arrive later

    def _was_healed(self, event: Healed) -> None:
        self._healed = event.at

    def finish(self, at: float) -> None:
        if self._healed is None:
            return
        self._unclear |= {(claim.lock, claim.number) for claim in self._open.values()}
        for run, refused in self._refused.items():
            first = self._first[run]
            is_fresh = first.at > self._healed + self.promises.settle_max
            if is_fresh and run not in self._ours and run not in self._unclear and run not in self._excused:
                message = (
                    f"no client got the run of {run[0]!r} in period {run[1]}, although the world was healed before"
                )
                self.violated(at, run[0], message, first, refused)
