"""The lock interfaces of other libraries, implemented with holdfast: each method is the call that a user would write.

No adapter works around a behaviour of holdfast: it changes names and units, and returns or raises as the other
library does. An object holds one lease, as in these libraries.
"""

from __future__ import annotations

from typing import Any, Self

import holdfast


class NotOwned(Exception):
    """The error of a library for a lock that the caller does not hold."""


class TimedOut(Exception):
    """The error of a library for a lock that was not acquired in time."""


class _Adapter:
    """One lease of one lock."""

    lock: Any
    lease: holdfast.Lease | None = None

    def _take(self, **options: Any) -> bool:
        lease = self.lock.acquire(**options)
        self.lease = lease or self.lease
        return lease is not None

    def _own(self) -> holdfast.Lease:
        if self.lease is None or not self.lease.held:
            raise NotOwned(self.lock.name)
        return self.lease

    def release(self) -> None:
        lease, self.lease = self._own(), None
        try:
            lease.release()
        except holdfast.LockLost as error:
            raise NotOwned from error


class RedisPyLock(_Adapter):
    """redis-py: `Lock(client, name, timeout, blocking, blocking_timeout)`. Its timeout is our ttl, without renewal."""

    def __init__(
        self, client: holdfast.Client, name: str, timeout: float = 50, blocking_timeout: float | None = None
    ) -> None:
        self.lock = client.lock(name, ttl=timeout, renew=False)
        self.timeout, self.blocking_timeout = timeout, blocking_timeout

    def acquire(self, *, blocking: bool = True, blocking_timeout: float | None = None) -> bool:
        seconds = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return self._take(timeout=seconds if blocking else 0)

    def locked(self) -> bool:
        return bool(self.lock.locked())

    def owned(self) -> bool:
        return self.lease is not None and self.lease.held

    def extend(self, additional_time: float, *, replace_ttl: bool = False) -> None:
        lease = self._own()
        lease.renew(ttl=additional_time if replace_ttl else lease.remaining + additional_time)

    def reacquire(self) -> None:
        self._own().renew(ttl=self.timeout)

    def __enter__(self) -> Self:
        if not self.acquire():
            raise TimedOut
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class KazooLock(_Adapter):
    """kazoo: `client.Lock(path)`; ReadLock and WriteLock have the same methods."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> bool:
        if not blocking:
            return self._take(blocking=False)
        if not self._take(timeout=timeout):
            raise TimedOut
        return True


class KazooSemaphore(_Adapter):
    """kazoo: `client.Semaphore(path, max_leases=…)`."""

    def __init__(self, client: holdfast.Client, name: str, max_leases: int = 1) -> None:
        self._client = client
        self.lock = client.semaphore(name, max_leases)

    def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> bool:
        return self._take(blocking=False) if not blocking else self._take(timeout=timeout)

    def lease_holders(self) -> list[int | None]:
        return [holder.fence for holder in self._client.inspect(self.lock.name).holders]


class FileLock:
    """filelock: `FileLock(path, timeout)`. One object counts its acquisitions; -1 waits without a limit."""

    def __init__(self, client: holdfast.Client, name: str, timeout: float = -1) -> None:
        self.lock = client.lock(name, reentrant=True)
        self.timeout = timeout
        self.leases: list[holdfast.Lease] = []

    def acquire(self, timeout: float | None = None, *, blocking: bool = True) -> Self:
        seconds = self.timeout if timeout is None else timeout
        lease = self.lock.acquire(timeout=0 if not blocking else None if seconds < 0 else seconds)
        if lease is None:
            raise TimedOut
        self.leases.append(lease)
        return self

    @property
    def is_locked(self) -> bool:
        return bool(self.leases)

    def release(self, *, force: bool = False) -> None:
        while self.leases:
            self.leases.pop().release()
            if not force:
                break

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class PotteryRedlock(_Adapter):
    """pottery: `Redlock(key, auto_release_time)`, without renewal; `locked()` returns the remaining time."""

    def __init__(
        self, client: holdfast.Client, key: str, auto_release_time: float = 50, num_extensions: int = 3
    ) -> None:
        self.lock = client.lock(key, ttl=auto_release_time, renew=False)
        self.auto_release_time, self._extensions_left = auto_release_time, num_extensions

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        return self._take(timeout=0 if not blocking else None if timeout < 0 else timeout)

    def locked(self) -> float:
        return 0.0 if self.lease is None else max(0.0, self.lease.remaining)

    def extend(self) -> None:
        lease = self._own()
        if not self._extensions_left:
            raise TimedOut("too many extensions")
        lease.renew()
        self._extensions_left -= 1
