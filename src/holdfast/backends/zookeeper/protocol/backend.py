"""The ZooKeeper backend: the lock verbs of the other modules, registers, records, and the verbs of operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.backends.zookeeper.port import Session
from holdfast.backends.zookeeper.protocol.acquire_all import AcquireAll
from holdfast.core.ports import Record
from holdfast.core.tickets import LockInfo

T = TypeVar("T")


class ZookeeperBackend(AcquireAll):
    """Locks in one ensemble, in FIFO order."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._in_any_session(
            lambda session: self._registers.advance(session, name, number, nonce=nonce, keep=keep, deadline=deadline),
            deadline,
        )

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._in_any_session(lambda session: self._registers.read(session, names, deadline), deadline)

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        return await self._in_any_session(
            lambda session: self._records.swap(session, name, expected, record, keep=keep, deadline=deadline),
            deadline,
            creates=bool(expected or record),
        )

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        return await self._in_any_session(
            lambda session: self._tree.inspect(session, name, deadline), deadline, creates=False
        )

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        return await self._in_any_session(
            lambda session: self._tree.locks(session, prefix, deadline), deadline, creates=False
        )

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        # It is not repeated, because a second answer could not show whether the first request broke the lock.
        session = await self._heartbeats.open_any(deadline, creates=False)
        return await self._tree.break_lock(session, name, fence, deadline)

    async def _in_any_session(
        self, work: Callable[[Session], Awaitable[T]], deadline: float, *, creates: bool = True
    ) -> T:
        """The result of `work`, which creates no ephemeral node, in any session."""
        return await self._retry_on_reconnect(
            lambda: self._heartbeats.open_any(deadline, creates=creates), work, deadline
        )
