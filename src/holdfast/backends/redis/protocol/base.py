"""The bases of the backends of one deployment: of all methods, and of the two plain ones."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from holdfast.backends.base_backend import BaseBackend
from holdfast.backends.redis.port import Call, RedisPort, Reply, Word
from holdfast.backends.redis.protocol.guarantees import GUARANTEES
from holdfast.backends.redis.protocol.keys import Keys, LockKeys, joined, keys_of, method_conflict, method_in
from holdfast.backends.redis.protocol.scanning import Lister, ListsLocks, S
from holdfast.backends.redis.protocol.server_info import guarantees_on
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, LockInfo, Waiting, make_ticket_info, note_unanswered
from holdfast.errors import BackendError, HoldfastError, NameConflict, Unsupported
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast.backends.redis.lua import Script
    from holdfast.core.ports import Runtime
    from holdfast.guarantees import Guarantees
    from holdfast.primitives import Lacks


POLL = 0.1  # longest interval in seconds between polls of a held lock; with jitter, so that waiters do not synchronise


class BaseRedisBackend(BaseBackend[RedisPort], ListsLocks[S], ABC):
    """Locks on one deployment, with any method."""

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime)
        self._prefix = prefix

    @property
    def warnings(self) -> tuple[str, ...]:
        return () if self._port.server_info is None else self._port.server_info.warnings

    @abstractmethod
    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting: ...

    async def _run_for_all(
        self,
        script: Script,
        locks: Sequence[LockKeys],
        claims: Sequence[Claim],
        arguments: Sequence[Word],
        deadline: float,
    ) -> Reply:
        """Run a script that acquires these locks, in order, for the first `len(locks)` claims."""
        try:
            return await self._port.run(Call(script, joined(locks), tuple(arguments)), deadline=deadline)
        except NameConflict:
            # The batch was refused; retry one lock at a time to find the one that conflicts. Locks before it were
            # granted and are granted again.
            for claim in claims[: len(locks)]:
                await self.try_acquire(claim, queue=False, deadline=deadline)
            raise
        except BaseException as error:
            note_unanswered(claims[: len(locks)], error)
            raise


class PlainBackend(BaseRedisBackend[Node]):
    """A lock that is one key. Waiters poll, and the first poll after the release is granted."""

    method: ClassVar[str]
    lacks: ClassVar[Lacks]

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime, prefix=prefix)
        self._lister = Lister(port, runtime, prefix, self._read_locks)

    @property
    def guarantees(self) -> Guarantees:
        return guarantees_on(GUARANTEES[self.method], self._port.server_info)

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not claim.exclusive:
            raise Unsupported(
                backend=f"redis with method={self.method}",
                what="readers and semaphores",
                others=("redis with method=queue",),
            )
        return self._result_of(claim, await self._try_take(claim, self._keys(claim.name), deadline))

    async def wait(self, claim: Claim, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        keys = self._keys(name)
        value = await self._port.command(keys, "GETRANGE", keys.lock, 0, 255, deadline=deadline)
        remaining_ms = await self._port.command(keys, "PTTL", keys.lock, deadline=deadline)
        text = value.decode(errors="replace")
        if not text:
            return LockInfo(name, (), ())
        fence, remaining = self._read(text, math.inf if remaining_ms < 0 else remaining_ms / 1000)
        holder = make_ticket_info(
            info="",
            fence=fence,
            agent="?" if fence else "another program",
            since=0.0,
            remaining=remaining,
            exclusive=True,
            limit=1,
        )
        return LockInfo(name, (holder,) if remaining > 0 else (), ())

    async def _read_locks(self, names: Sequence[str], deadline: float) -> Callable[[], list[LockInfo]]:
        infos = []
        for name in names:
            with contextlib.suppress(NameConflict):  # a key of another type is not a lock
                infos.append(await self.inspect(name, deadline=deadline))
        return lambda: [info for info in infos if any(holder.fence or self._prefix for holder in info.holders)]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        keys = self._keys(name)
        value = await self._port.command(keys, "GETRANGE", keys.lock, 0, 255, deadline=deadline)
        text = value.decode(errors="replace")
        if not text or self._read(text, 1.0)[0] != fence:
            return False
        return await self._delete_if(keys, text, deadline)

    def _result_of(self, claim: Claim, outcome: Granted | tuple[str, float]) -> Granted | Waiting:
        if isinstance(outcome, Granted):
            return outcome
        value, remaining = outcome
        method = method_in(value)
        if method not in {None, self.method}:
            raise method_conflict(claim.name, str(method))
        poll_after = min(POLL * (0.5 + self._runtime.jitter() / 2), max(0.001, remaining))
        return Waiting(poll_after, "another client" if method else "another program")

    def _keys(self, name: str) -> Keys:
        return keys_of(self._prefix, name)

    @abstractmethod
    async def _try_take(self, claim: Claim, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        """The grant; or the value of the key, and the seconds until it expires."""

    @abstractmethod
    def _read(self, value: str, remaining: float) -> tuple[int, float]:
        """The fence in a value (0 for another program's), and the seconds that it is still valid."""

    @abstractmethod
    async def _delete_if(self, keys: Keys, value: str, deadline: float) -> bool:
        """Delete the key if it still has this value."""


def renewed(reply: Reply | HoldfastError, deadline: float) -> Live | LeaseGone | BackendError:
    """The result of a renewal from the reply of a script."""
    if isinstance(reply, BackendError):
        return reply
    if isinstance(reply, HoldfastError):
        return LeaseGone(f"its key has a value of another type now: {reply}")
    return Live(deadline) if reply == 1 else LeaseGone()
