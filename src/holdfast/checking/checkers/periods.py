"""Is a job run once in a period, by one of all who claim it?"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from holdfast.checking.history import ClaimEnded, ClaimStarted, Crashed, Healed, StateLost
from holdfast.checking.promises import Promises

from .base import Checker

_Run: TypeAlias = tuple[str, int]  # a job and the number of a period


class OncePerPeriod(Checker):
    """Of all who claim a job's run in one period, one at most is told that it is theirs, whatever becomes of it.

    In a healed world one is: a period that was first claimed after that and whose claims all got their answers has had
    its run. What a server forgot counts as not claimed.
    """

    name = "single runs"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: float | None = None
        self._open: dict[int, ClaimStarted] = {}
        self._first: dict[_Run, ClaimStarted] = {}
        self._ours: dict[_Run, ClaimEnded] = {}
        self._refused: dict[_Run, ClaimEnded] = {}
        self._unclear: set[_Run] = set()  # a claim got no answer: it may have been the one
        self._excused: set[_Run] = set()
        self._of_client: defaultdict[str, list[ClaimStarted]] = defaultdict(list)  # since the client last crashed
        self.on = {
            ClaimStarted: self._claiming,
            ClaimEnded: self._claimed,
            Crashed: self._crashed,
            StateLost: self._forgot,
            Healed: self._was_healed,
        }

    @property
    def was_tested(self) -> bool:
        return bool(self._first)

    def _claiming(self, event: ClaimStarted) -> None:
        self._open[event.ticket] = event
        self._first.setdefault((event.lock, event.number), event)
        self._of_client[event.client].append(event)

    def _claimed(self, event: ClaimEnded) -> None:
        self._open.pop(event.ticket, None)
        run = (event.lock, event.number)
        if event.outcome == "not ours":
            self._refused.setdefault(run, event)
        elif event.outcome != "ours":
            self._unclear.add(run)
        elif run not in self._excused:
            before = self._ours.setdefault(run, event)
            if before is not event:
                what = (
                    f"{event.client} was told to run {event.lock!r} in period {event.number}, "
                    f"and so was {before.client} before it"
                )
                self.violated(event.at, event.lock, what, before, event)

    def _crashed(self, event: Crashed) -> None:
        for claiming in self._of_client.pop(event.client, ()):
            if self._open.pop(claiming.ticket, None) is not None:
                self._unclear.add((claiming.lock, claiming.number))

    def _forgot(self, event: StateLost) -> None:
        if event.what == "data" and event.majority:
            self._excused |= self._first.keys()  # also what was done before and is heard of later

    def _was_healed(self, event: Healed) -> None:
        self._healed = event.at

    def finish(self, at: float) -> None:
        if self._healed is None:
            return
        self._unclear |= {(claiming.lock, claiming.number) for claiming in self._open.values()}
        for run, refused in self._refused.items():
            first = self._first[run]
            is_fresh = first.at > self._healed + self.promises.settle_max
            if is_fresh and run not in self._ours and run not in self._unclear and run not in self._excused:
                what = f"nobody was told to run {run[0]!r} in period {run[1]}, although the world was healed before it"
                self.violated(at, run[0], what, first, refused)
