"""`once` with one bug each."""

from __future__ import annotations

from typing import Any, cast

from holdfast.core.leases import BaseLease
from holdfast.core.once import OnceCall, swap
from holdfast.core.ports import Record
from holdfast.errors import OutcomeUnknown
from holdfast_lab.sim.client import SimClient, SimLease
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.mutants.engine import SimEngine


class _CompletesAnyRecord(OnceCall):
    async def _swap(self, expected: str, record: Record | None, keep: float, patience: float = 0.0) -> Record | None:
        if record is not None and expected == self._nonce:
            current = await super()._swap("", None, 0.0)
            expected = "" if current is None else current.nonce
        return await super()._swap(expected, record, keep, patience)


class _WritesAfterTheBody(OnceCall):
    async def start(self, lease: BaseLease) -> None:
        await self.look()
        self._mine = self._running(lease)

    async def complete(self, lease: BaseLease, value: Any) -> None:
        await self._swap("", self._mine, self._plan.running_kept)
        await super().complete(lease, value)


class _RunsWithoutAnAnswer(OnceCall):
    async def start(self, lease: BaseLease) -> None:
        try:
            await self._start(lease)
        except OutcomeUnknown:
            return


class _RepeatsAnyInterruption(OnceCall):
    def _outcome_of_interrupted(self, run: Any, lease: BaseLease) -> None:
        return None


class _CompletesWithoutAnAnswer(OnceCall):
    """A completion without an answer counts as recorded."""

    async def _swap(self, expected: str, record: Record | None, keep: float, patience: float = 0.0) -> Record | None:
        if expected != self._nonce or record is None:
            return await super()._swap(expected, record, keep, patience)
        try:
            return await swap(self._engine, self._key, expected, record, keep)
        except OutcomeUnknown:
            return record


class CompletesAnyRecord(SimClient):
    once_call_type = _CompletesAnyRecord


class WritesAfterTheBody(SimClient):
    once_call_type = _WritesAfterTheBody


class RunsWithoutAnAnswer(SimClient):
    once_call_type = _RunsWithoutAnAnswer


class RepeatsAnyInterruption(SimClient):
    once_call_type = _RepeatsAnyInterruption


class CompletesWithoutAnAnswer(SimClient):
    once_call_type = _CompletesWithoutAnAnswer


class _NoLease:
    """Stands for the lease of a call that did not acquire the lock."""

    lost = False
    held = False
    call = None

    def __init__(self, fence: int) -> None:
        self.fence = fence

    def check(self) -> None:
        """It is never lost."""


class _WithoutEvents(SimEngine):
    def started(self, lease: BaseLease) -> None:
        """A call without a lease has no attempt, and so no events."""


class ReplacesWithoutTheLock(SimClient):
    """A running record is replaced although its run holds the lock."""

    async def acquire_for_once(self, call: OnceCall, timeout: float | None) -> SimLease | None:
        run = call._seen
        if run is None or call._plan.after_crash != "retry":
            return await super().acquire_for_once(call, timeout)
        return cast("SimLease", _NoLease(run.info.fence + 1))

    async def release(self, lease: SimLease) -> None:
        if isinstance(lease, SimLease):
            await super().release(lease)


def _mutant(name: str, mistake: str, client: type[SimClient], *kinds: str) -> Mutant:
    return Mutant(name=name, mistake=mistake, client=client, workload="once", kinds=frozenset(kinds) or None)


ONCE = [
    _mutant("once-completes-any-record", "a run completes the record of another run", CompletesAnyRecord, "pause"),
    _mutant("once-writes-after-the-body", "the running record is written after the body", WritesAfterTheBody),
    _mutant("once-runs-without-an-answer", "the body runs without an answer", RunsWithoutAnAnswer, "lose_request"),
    _mutant("once-repeats-any-interruption", "an interrupted run is repeated without retry", RepeatsAnyInterruption),
    _mutant("once-completes-without-an-answer", "an unanswered completion succeeds", CompletesWithoutAnAnswer),
    Mutant(
        name="once-replaces-without-the-lock",
        mistake="a running record is replaced without the lock, although its run may be alive",
        client=ReplacesWithoutTheLock,
        engine=_WithoutEvents,
        workload="once",
    ),
]
