"""holdfast: the distributed lock for Python, for threads and for asyncio, over the stores people already run.

    import holdfast

    with holdfast.lock("nightly-report"):
        ...

This module exports the public names and imports no driver. The asyncio part is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.elections import Leader
from holdfast.core.events import Event, log_events
from holdfast.core.locks import LockOptions
from holdfast.core.once import OnceInfo, Outcome
from holdfast.core.stats import GroupStats, Stats
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.core.wait_graph import WaitEdge, WaitGraph
from holdfast.default import default_client, election, lock, lock_all, locked, once, once_per, rwlock, semaphore
from holdfast.errors import (
    AccessDenied,
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    HoldfastWarning,
    LimitConflict,
    LockLost,
    NameConflict,
    NotHeld,
    OnceFailed,
    OnceInterrupted,
    OnceMismatch,
    OutcomeUnknown,
    QuorumError,
    StaleFence,
    ThreadStartError,
    Unsupported,
    UsageError,
    WouldDeadlock,
)
from holdfast.guarantees import Guarantees, Requirements
from holdfast.runtimes.exits import exit_on
from holdfast.threads.client import Client
from holdfast.threads.lock_all import LeaseAll, LockAll
from holdfast.threads.locks import Lease, Lock, RWLock, Semaphore
from holdfast.threads.once import Once

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient
    from holdfast.aio.election import AsyncElection
    from holdfast.aio.lock_all import AsyncLeaseAll, AsyncLockAll
    from holdfast.aio.locks import AsyncLease, AsyncLock, AsyncRWLock, AsyncSemaphore
    from holdfast.aio.once import AsyncOnce
    from holdfast.threads.election import Election

__version__ = "0.2.0"

__all__ = [
    "AccessDenied",
    "AcquireTimeout",
    "AsyncClient",
    "AsyncElection",
    "AsyncLease",
    "AsyncLeaseAll",
    "AsyncLock",
    "AsyncLockAll",
    "AsyncOnce",
    "AsyncRWLock",
    "AsyncSemaphore",
    "BackendError",
    "BackendUnavailable",
    "Client",
    "ConfigurationError",
    "Election",
    "Event",
    "GroupStats",
    "Guarantees",
    "HoldfastError",
    "HoldfastWarning",
    "Leader",
    "Lease",
    "LeaseAll",
    "LimitConflict",
    "Lock",
    "LockAll",
    "LockInfo",
    "LockLost",
    "LockOptions",
    "NameConflict",
    "NotHeld",
    "Once",
    "OnceFailed",
    "OnceInfo",
    "OnceInterrupted",
    "OnceMismatch",
    "Outcome",
    "OutcomeUnknown",
    "QuorumError",
    "RWLock",
    "Requirements",
    "Semaphore",
    "StaleFence",
    "Stats",
    "ThreadStartError",
    "TicketInfo",
    "Unsupported",
    "UsageError",
    "WaitEdge",
    "WaitGraph",
    "WouldDeadlock",
    "default_client",
    "election",
    "exit_on",
    "lock",
    "lock_all",
    "locked",
    "log_events",
    "once",
    "once_per",
    "rwlock",
    "semaphore",
]


_MODULES = {  # imported at the first use
    "AsyncClient": "holdfast.aio.client",
    "AsyncElection": "holdfast.aio.election",
    "AsyncLease": "holdfast.aio.locks",
    "AsyncLeaseAll": "holdfast.aio.lock_all",
    "AsyncLock": "holdfast.aio.locks",
    "AsyncLockAll": "holdfast.aio.lock_all",
    "AsyncOnce": "holdfast.aio.once",
    "AsyncRWLock": "holdfast.aio.locks",
    "AsyncSemaphore": "holdfast.aio.locks",
    "Election": "holdfast.threads.election",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, without the modules of the package."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
