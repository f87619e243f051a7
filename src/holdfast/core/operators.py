"""The verbs for operators: list and inspect locks, break a lease, and request its release."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.ports import ListsBySearch, ReservesFences, StoreMissing
from holdfast.core.tickets import LockInfo
from holdfast.core.wait_graph import WaitGraph, edges_of, wait_graph

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.leases import BaseLease
    from holdfast.core.ports import Listing

T = TypeVar("T")

REVOKED = "revoke:"  # prefix of a register: release is requested of all leases of the lock up to this fence
REQUEST_KEPT = 86400.0  # seconds


class Operators:
    """Reading verbs create no store: a store that does not exist has no locks."""

    def __init__(self, engine: Engine[Any]) -> None:
        self.needs_store = False  # raise StoreMissing if the store does not exist: for the command line
        self._engine = engine

    async def unless_missing(self, request: Awaitable[T], otherwise: T) -> T:
        """The answer to a request; `otherwise` if the store does not exist and need not exist."""
        try:
            return await request
        except StoreMissing:
            if self.needs_store:
                raise
            return otherwise

    async def inspect(self, name: str, give_up: float = float("inf")) -> LockInfo:
        request = self._engine.backend.inspect(name, deadline=self._engine.request_deadline(give_up))
        return await self.unless_missing(request, LockInfo(name, (), ()))

    async def locks(self, prefix: str) -> list[LockInfo]:
        request = self._engine.backend.locks(prefix, deadline=self._engine.request_deadline())
        return await self.unless_missing(request, [])

    async def wait_graph(self, locks: Iterable[LockInfo]) -> WaitGraph:
        """The wait-for graph of these locks, without cycles that a second reading does not show."""
        graph = wait_graph(locks)
        waited_for = {edge.lock for cycle in graph.cycles for edge in cycle}
        again = {edge.identity for name in waited_for for edge in edges_of(await self.inspect(name))}
        return graph._replace(
            cycles=tuple(cycle for cycle in graph.cycles if again.issuperset(edge.identity for edge in cycle))
        )

    def listing(self, prefix: str) -> Listing | None:
        """The search of `locks`, for a caller that shows its progress; None if `locks` does not have to search."""
        backend = self._engine.backend
        if isinstance(backend, ListsBySearch):
            return backend.listing(prefix, io_timeout=self._engine.io_timeout)
        return None

    async def break_lock(self, name: str, fence: int, *, force: bool = False) -> bool:
        backend, deadline = self._engine.backend, self._engine.request_deadline()
        if force and isinstance(backend, ReservesFences):
            return await self.unless_missing(backend.break_range(name, fence, deadline=deadline), otherwise=False)
        return await self.unless_missing(backend.break_lock(name, fence, deadline=deadline), otherwise=False)

    async def request_revoke(self, name: str, fence: int | None) -> bool:
        """Request the release of the lease with this fence, or of the present holders; False if there is none."""
        engine = self._engine
        fences = [holder.fence for holder in (await self.inspect(name)).holders if holder.fence]
        # The request applies to every lease up to that fence: a fence that no holder has would apply to later leases.
        if not fences or (fence is not None and fence not in fences):
            return False
        fence = max(fences) if fence is None else fence
        await engine.backend.advance_register(
            REVOKED + name, fence, nonce=engine.runtime.nonce(), keep=REQUEST_KEPT, deadline=engine.request_deadline()
        )
        return True

    async def revoke_requests(self, leases: Sequence[BaseLease], deadline: float) -> list[bool]:
        """For each lease, whether its release is requested."""
        registers = [REVOKED + lease.name for lease in leases]
        fences = await self._engine.backend.read_registers(registers, deadline=deadline)
        return [fence >= lease.fence for lease, fence in zip(leases, fences, strict=True)]
