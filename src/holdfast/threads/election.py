"""Elections for threads. `aio/election.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Never, Self

from holdfast.core import elections, names
from holdfast.core.elections import EVERY, BaseElection, Leader, Observation, OutageBackoff
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, Unset
from holdfast.core.names import Duration
from holdfast.errors import AccessDenied, BackendError, ConfigurationError, LockLost, UsageError
from holdfast.runtimes.threads import run_sync
from holdfast.threads.locks import Lease, Lock


class Election(BaseElection[Lease], Lock):
    """The lock of that name, whose holder leads: the fence of its lease is the term.

    >>> import holdfast
    >>> with holdfast.Client("memory://") as client:
    ...     election = client.election("scheduler", meta={"zone": "a"})
    ...     with election as lease:
    ...         leader = election.leader()
    ...         assert leader.term == lease.fence
    ...     leader.meta, election.leader()
    ({'zone': 'a'}, None)
    """

    _is_async = False

    def campaign(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as `acquire`
        *,
        timeout: Duration | Unset | None = UNSET,
        **unknown: Never,
    ) -> Lease | None:
        """Wait to be elected and return the Lease of the term, or None after `timeout` seconds; as `acquire`.

        Raises:
            WouldDeadlock: this thread or task leads, and the election is not reentrant.
            BackendUnavailable, OutcomeUnknown: the server gave no answer; never raised for a busy lock.
        """
        names.refuse_unknown("campaign", unknown, ACQUIRE_OPTIONS)
        return self.acquire(blocking, timeout=timeout)

    def resign(self) -> None:
        """End the term: release the lease that this thread or task acquired last through this object; as `release`.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        self.release()

    def leader(self) -> Leader | None:
        """The present leader, according to the server, or None. A program without fences has the term 0."""
        return elections.leader_of(self._client.inspect(self.name))

    def observe(self, *, every: Duration = EVERY, timeout: Duration | None = None) -> Iterator[Leader | None]:
        """Iterate over the present leader and each change: the next leader, or None while there is none.

        The server is polled every `every` seconds; a leader between two polls is missed. Terms only grow: an older
        leader that a lagging server reports is skipped. The iteration ends after `timeout` seconds, or when the client
        is closed. An outage of the store is logged once, and polling continues.

        Raises:
            BackendError: the store gave no answer, at the first poll or when the time was up.
        """
        seconds, limit = names.check_every(every), names.check_timeout(timeout)
        return _Changes(self._engine_if_open, self.name, seconds, limit)

    def run(self, work: Callable[[Lease], object]) -> None:
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
        elections.check_callback("work", work, is_async=False)
        backoff = OutageBackoff(self.name)
        while not self.stopped:
            lease, depth = None, 0
            try:
                lease = self.acquire(timeout=None)
                backoff.answered()
                if lease is not None:
                    depth = lease._depth
                    with lease:
                        if not self.stopped:
                            _refuse_coroutine(work(lease))
            except LockLost as lost:
                if lease is None or lost.fence != lease.fence or lost.lock != self.name:
                    raise
            except BackendError as error:
                if lease is not None or isinstance(error, AccessDenied):
                    raise
                self._pause(backoff.back_off(error))
            except UsageError:
                if lease is not None or not self._client._closed:
                    raise
                return
            except BaseException:
                # A KeyboardInterrupt before the first instruction of the lease's `__enter__` or `__exit__`.
                if lease is not None and lease._depth == depth:
                    lease._engine.interrupted_exit(lease)
                raise

    def stop(self) -> None:
        """Make `run` return, from any thread or from `work` itself. Final: to campaign again, make another election.

        Callers that wait through this object stop waiting at their next poll, within seconds. The work of a leader is
        cancelled in asyncio; with threads it has to check `stopped`. Leading ends when the work has returned.
        """
        self._given_up = True

    def _pause(self, seconds: float) -> None:
        with contextlib.suppress(UsageError):  # closed: the next campaign raises it
            engine = self._client._engine
            run_sync(engine.closing.wait(engine.runtime.now() + seconds))


class _Changes(Observation):
    """An iterator class, because a generator would be finished after an interrupt."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Leader | None:
        if run_sync(self.changed()):
            return self.leader
        raise StopIteration


def _refuse_coroutine(outcome: object) -> None:
    close = getattr(outcome, "close", None)
    if hasattr(outcome, "__await__") and close is not None:
        close()
        raise ConfigurationError("work returned a coroutine, which only the election of an AsyncClient awaits")
