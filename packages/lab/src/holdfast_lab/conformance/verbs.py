"""Call the methods of a backend on threads one by one, for behaviour that the engine hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.ports import Backend, KeepsRecords, Record
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, LockInfo, Waiting
from holdfast.errors import BackendError
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import opener, parse

PATIENCE = 10.0


class Verbs:
    """One client without the engine."""

    def __init__(self, url: str) -> None:
        self.runtime = ThreadRuntime()
        address = parse(url)
        self.backend: Backend = opener(address, "blocking")(address, self.runtime)

    def ticket(self, name: str, **others: Any) -> Claim:
        """Return an exclusive ticket with a new nonce."""
        info = '{"who": {"host": "test", "pid": 1, "program": "test"}, "meta": {}}'
        usual: dict[str, Any] = {"nonce": self.runtime.nonce(), "ttl": 100.0, "limit": 1, "exclusive": True}
        return Claim(name, **usual | {"agent": "test", "info": info} | others)

    def try_acquire(self, ticket: Claim, *, queue: bool = True) -> Granted | Waiting:
        return run_sync(self.backend.try_acquire(ticket, queue=queue, deadline=self._deadline))

    def try_acquire_all(self, tickets: Sequence[Claim]) -> Sequence[Granted | Waiting]:
        return run_sync(self.backend.try_acquire_all(tickets, deadline=self._deadline))

    def release(self, *tickets: Claim) -> Sequence[bool | BackendError]:
        return run_sync(self.backend.release(tickets, deadline=self._deadline))

    def renew(self, *tickets: Claim) -> Sequence[Live | LeaseGone | BackendError]:
        return run_sync(self.backend.renew(tickets, deadline=self._deadline))

    def wait(self, ticket: Claim, seconds: float) -> float:
        """Wait. Return how long it took until a retry made sense, or the time was up."""
        begun = self.runtime.now()
        run_sync(self.backend.wait(ticket, begun + seconds))
        return self.runtime.now() - begun

    def inspect(self, name: str) -> LockInfo:
        return run_sync(self.backend.inspect(name, deadline=self._deadline))

    def locks(self) -> list[LockInfo]:
        return run_sync(self.backend.locks("", deadline=self._deadline))

    def break_lock(self, name: str, fence: int) -> bool:
        return run_sync(self.backend.break_lock(name, fence, deadline=self._deadline))

    def advance_register(self, name: str, number: int, *, nonce: str | None = None, keep: float = 100.0) -> bool:
        nonce = self.runtime.nonce() if nonce is None else nonce
        return run_sync(self.backend.advance_register(name, number, nonce=nonce, keep=keep, deadline=self._deadline))

    def read_registers(self, *names: str) -> Sequence[int]:
        return run_sync(self.backend.read_registers(names, deadline=self._deadline))

    def swap_record(self, name: str, expected: str, record: Record | None, *, keep: float = 100.0) -> Record | None:
        assert isinstance(self.backend, KeepsRecords)
        return run_sync(self.backend.swap_record(name, expected, record, keep=keep, deadline=self._deadline))

    def read_record(self, name: str) -> Record | None:
        return self.swap_record(name, "", None)

    def close(self) -> None:
        run_sync(self.backend.close())

    @property
    def _deadline(self) -> float:
        return self.runtime.now() + PATIENCE
