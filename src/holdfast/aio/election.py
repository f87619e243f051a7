"""Elections for asyncio. `threads/election.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Never, Self

from holdfast.aio.client import AsyncClient
from holdfast.aio.locks import AsyncLease, AsyncLock
from holdfast.core import elections, names
from holdfast.core.elections import EVERY, BaseElection, Leader, Observation, OutageBackoff
from holdfast.core.leases import LockSpec
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, Unset
from holdfast.core.names import Duration
from holdfast.errors import AccessDenied, BackendError, ConfigurationError, LockLost, UsageError
from holdfast.runtimes.aio import Body


class AsyncElection(BaseElection[AsyncLease], AsyncLock):
    """The lock of that name, whose holder leads: the fence of its lease is the term.

    >>> import asyncio, holdfast
    >>> async def main():
    ...     async with holdfast.AsyncClient("memory://") as client:
    ...         election = client.election("scheduler", meta={"zone": "a"})
    ...         async with election as lease:
    ...             leader = await election.leader()
    ...             assert leader.term == lease.fence
    ...         return leader.meta, await election.leader()
    >>> asyncio.run(main())
    ({'zone': 'a'}, None)
    """

    _is_async = True

    def __init__(self, client: AsyncClient, spec: LockSpec, timeout: float | None) -> None:
        super().__init__(client, spec, timeout)
        self._bodies: set[Body] = set()  # cancelled by `stop`: the waits and the work of `run`

    def campaign(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as `acquire`
        *,
        timeout: Duration | Unset | None = UNSET,
        **unknown: Never,
    ) -> Coroutine[Any, Any, AsyncLease | None]:
        """Wait to be elected and return the Lease of the term, or None after `timeout` seconds; as `acquire`.

        Raises:
            WouldDeadlock: this thread or task leads, and the election is not reentrant.
            BackendUnavailable, OutcomeUnknown: the server gave no answer; never raised for a busy lock.
        """
        names.refuse_unknown("campaign", unknown, ACQUIRE_OPTIONS)
        return self.acquire(blocking, timeout=timeout)

    async def resign(self) -> None:
        """End the term: release the lease that this thread or task acquired last through this object; as `release`.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        await self.release()

    async def leader(self) -> Leader | None:
        """The present leader, according to the server, or None. A program without fences has the term 0."""
        return elections.leader_of(await self._client.inspect(self.name))

    def observe(self, *, every: Duration = EVERY, timeout: Duration | None = None) -> AsyncIterator[Leader | None]:
        """Iterate over the present leader and each change: the next leader, or None while there is none.

        The server is polled every `every` seconds; a leader between two polls is missed. Terms only grow: an older
        leader that a lagging server reports is skipped. The iteration ends after `timeout` seconds, or when the client
        is closed. An outage of the store is logged once, and polling continues.

        Raises:
            BackendError: the store gave no answer, at the first poll or when the time was up.
        """
        seconds, limit = names.check_every(every), names.check_timeout(timeout)
        return _Changes(self._engine_if_open, self.name, seconds, limit)

    async def run(self, work: Callable[[AsyncLease], Awaitable[object]]) -> None:
        """Campaign, call `work(lease)` while leading, resign when it returns; repeat this until `stop()`.

        After a lost term the next campaign follows when `work` has returned. With threads, `work` must detect the loss
        itself (`lease.lost`, `lease.check()`); in asyncio it is cancelled. `run` resigns and passes on other exceptions
        of `work`. An outage of the store between two terms is logged once, and campaigning continues. `run` ignores the
        `timeout` of the election and keeps its place in the queue. It also ends when the client is closed while it
        waits.

        Raises:
            BackendError: the store gave no answer at the first campaign.
            ConfigurationError: `work` is a coroutine function for a Client, or a plain one for an AsyncClient.
        """
        elections.check_callback("work", work, is_async=True)
        backoff = OutageBackoff(self.name)
        while not self.stopped:
            lease = None
            try:
                with self._until_stopped():
                    lease = await self.acquire(timeout=None)
                backoff.answered()
                if lease is not None:
                    async with lease:
                        with self._until_stopped():
                            await _awaitable(work(lease))
            except LockLost as lost:
                if lease is None or lost.fence != lease.fence or lost.lock != self.name:
                    raise
            except BackendError as error:
                if lease is not None or isinstance(error, AccessDenied):
                    raise
                with self._until_stopped():
                    await self._client._runtime.sleep(backoff.back_off(error))
            except UsageError:
                if lease is not None or not self._client._closed:
                    raise
                return

    def stop(self) -> None:
        """Make `run` return, from any task or from `work` itself. Final: to campaign again, make another election.

        Callers that wait through this object stop waiting at their next poll, within seconds. The work of a leader is
        cancelled in asyncio; with threads it has to check `stopped`. Leading ends when the work has returned.
        """
        self._given_up = True
        for body in self._bodies:
            body.report_lost()

    @contextlib.contextmanager
    def _until_stopped(self) -> Iterator[None]:
        """`stop` cancels the body of this context, which then ends here. Other cancellations are passed on."""
        body = Body()
        self._bodies.add(body)
        ended_by = None
        try:
            if self.stopped:
                body.report_lost()
            yield
        except asyncio.CancelledError as error:
            ended_by = error
        finally:
            self._bodies.discard(body)
            was_ours = body.end(ended_by)
        if ended_by is not None and not was_ours:
            raise ended_by


class _Changes(Observation):
    """An iterator class, because a generator would be finished after a cancellation, as of `asyncio.timeout`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Leader | None:
        if await self.changed():
            return self.leader
        raise StopAsyncIteration


def _awaitable(outcome: object) -> Awaitable[object]:
    if isinstance(outcome, Awaitable):
        return outcome
    raise ConfigurationError("work must be a coroutine function: the election of a Client calls plain ones")
