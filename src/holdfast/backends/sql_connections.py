"""Shared by the connections to MySQL and PostgreSQL: the pool, retries, and finding or creating the tables."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.backends.net.pool import Abandonable, ConnectionPool
from holdfast.core.ports import Runtime, StoreMissing
from holdfast.errors import AccessDenied, BackendUnavailable, ConfigurationError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Poller

RETRY_PAUSE = 0.02  # seconds, at most, before a request that lost a conflict is sent again


class TransactionConflict(Exception):
    """A conflict with another transaction: nothing changed, and the request may be repeated at once. Internal."""


class TablesMissing(Exception):
    """A table or function of ours does not exist, or is of an older version. Internal."""

    is_outdated = False  # it exists


def unavailable(url: str, problem: str) -> BackendUnavailable:
    return BackendUnavailable(backend=url, problem=problem)


def outcome_unknown(url: str, problem: str) -> OutcomeUnknown:
    return OutcomeUnknown(backend=url, problem=problem)


def access_denied(url: str, grants: str, problem: str) -> AccessDenied:
    """The error for a right that this user lacks; `grants` are all rights that it needs."""
    return AccessDenied(backend=url, problem=f"this user lacks a right that locks need ({grants}): {problem}")


def creation_error(error: AccessDenied, url: str, older: str = "") -> AccessDenied:
    """The error for tables that this user has no right to create or upgrade: what to run instead."""
    problem = (
        f"{error.problem}{older}: let a user with that right run what `holdfast init --print '{url}'` prints, then "
        "grant this user the rights"
    )
    return AccessDenied(backend=url, problem=problem)


def one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


C = TypeVar("C", bound=Abandonable)


class DatabaseConnections(ABC, Generic[C]):
    """The connections of one client to one database."""

    version: int  # of the tables and procedures that this code knows
    container: str  # the word for the object that has the tables, for error messages

    def __init__(self, url: str, max_connections: int, poller: Poller, runtime: Runtime) -> None:
        self.is_durable = True  # a crash or failover loses nothing, as far as the server has reported
        self._url, self._poller, self._runtime, self._now = url, poller, runtime, runtime.now
        self._pool = ConnectionPool(url, self.open, runtime, max_connections)
        self._opened: weakref.WeakSet[C] = weakref.WeakSet()  # also those outside the pool
        self._has_tables = False

    @abstractmethod
    def open(self, deadline: float) -> Coroutine[Any, Any, C]:
        """Open a connection for the caller alone.

        Raises:
            BackendUnavailable: no server could be reached, or it refused the login.
        """

    async def close(self) -> None:
        self._pool.close()

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without sending anything on them."""
        self._pool.abandon()
        for connection in list(self._opened):
            connection.abandon()

    async def _pause_after(self, conflict: TransactionConflict, deadline: float) -> None:
        """Wait before the request is repeated; raise BackendUnavailable if no time is left for that."""
        pause = RETRY_PAUSE * self._runtime.jitter()
        if self._now() + pause >= deadline:
            raise unavailable(self._url, f"every attempt conflicted with another transaction: {conflict}") from conflict
        await self._runtime.sleep(pause)

    async def _ensure_tables(
        self, connection: C, deadline: float, missing: TablesMissing | None, *, creates: bool
    ) -> None:
        """Find our tables, or create them. Nothing of the caller's request has been sent before this returns.

        `missing` is set if the server has reported a missing table or function, whatever version it has recorded.

        Raises:
            StoreMissing: there are no tables, so there are no locks, and `creates` is False.
            BackendUnavailable: the tables are old or incomplete, so there may be locks, and `creates` is False.
            ConfigurationError: the tables are of a newer version; or this user has no right to create them.
        """
        try:
            version = await self._read_version(connection, deadline)
            self._check_version(version, is_complete=missing is None, creates=creates)
            if creates and (version < self.version or missing is not None):
                await self._create_tables(connection, deadline, missing, version)
        except OutcomeUnknown as error:
            raise unavailable(error.backend, error.problem) from error
        self._has_tables = True

    def _check_version(self, version: int, *, is_complete: bool, creates: bool) -> None:
        """Raise unless tables of this version (0: there are none) can be used, or created or upgraded first."""
        if version > self.version:
            raise ConfigurationError(
                f"{self._url}: the tables are of a newer holdfast (version {version}, this one knows {self.version}): "
                f"use that one, or another {self.container}"
            )
        if creates or (version == self.version and is_complete):
            return
        if not version:
            problem = (
                "there are no tables of holdfast yet: they are created when a lock is taken, or by `holdfast init`"
            )
            raise StoreMissing(backend=self._url, problem=problem)
        problem = "some of the tables are missing"
        if version < self.version:
            problem = f"the tables are of an older holdfast (version {version}, this one knows {self.version})"
        fix = "they are brought up to date when a lock is taken, or by `holdfast init`, not by a call that only reads"
        raise unavailable(self._url, f"{problem}: {fix}")

    @abstractmethod
    async def _read_version(self, connection: C, deadline: float) -> int:
        """The version of the tables; 0 if there are none."""

    @abstractmethod
    async def _create_tables(self, connection: C, deadline: float, missing: TablesMissing | None, version: int) -> None:
        """Create the tables, or upgrade those of `version` (0: there are none)."""
