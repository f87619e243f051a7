"""Adapters of other libraries' locks for `holdfast verify`.

Each library is used as its documentation shows. Where it can renew a lock by itself, it does; otherwise the load calls
its method for that every third of the ttl. `is_held` is the library's own way to ask whether this lease is still held;
a library that has none is believed until its release, as the body of a `with` block would. `documented` has the limits
that its documentation states; a violation within them counts as documented.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from benchmarks.contender import peer
from holdfast_lab.verify.adapter import Adapter

_SOCKET_TIMEOUT = 2.0  # seconds; without one, a lost reply would block a call forever


def _redis(url: str) -> Any:
    return peer("redis").Redis.from_url(url, socket_timeout=_SOCKET_TIMEOUT, socket_connect_timeout=_SOCKET_TIMEOUT)


class RedisPy(Adapter):
    """redis.Redis.lock."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = _redis(url)

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        lock = self._client.lock(name, timeout=ttl, blocking_timeout=timeout, thread_local=False)
        return lock if lock.acquire() else None

    def is_held(self, held: Any) -> bool:
        return bool(held.owned())

    def extend(self, held: Any) -> bool:
        return _succeeds(held.reacquire, peer("redis.exceptions").LockError)

    def release(self, held: Any) -> bool:
        return _succeeds(held.release, peer("redis.exceptions").LockError)

    def close(self) -> None:
        self._client.close()


class PythonRedisLock(Adapter):
    """redis_lock.Lock, renewed by its own thread."""

    renews = True
    documented: ClassVar[Mapping[str, str]] = {
        "outcomes": "acquire() takes whole seconds, and a timeout up to the expiry (its docstring and error message)"
    }

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = _redis(url)

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        lock = peer("redis_lock").Lock(self._client, name, expire=round(ttl), auto_renewal=True)
        # It takes whole seconds and refuses a timeout that is longer than the expiry.
        seconds = min(round(ttl), round(timeout))
        return lock if lock.acquire(blocking=seconds > 0, timeout=seconds or None) else None

    def is_held(self, held: Any) -> bool:
        return bool(held.get_owner_id() == held.id)

    def release(self, held: Any) -> bool:
        return _succeeds(held.release, peer("redis_lock").NotAcquired)

    def close(self) -> None:
        self._client.close()


class Pottery(Adapter):
    """pottery.Redlock with one master."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = _redis(url)

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        # As many extensions as a long hold needs; three are its default.
        lock = peer("pottery").Redlock(key=name, masters={self._client}, auto_release_time=ttl, num_extensions=100)
        acquired = lock.acquire(timeout=timeout) if timeout else lock.acquire(blocking=False)
        return lock if acquired else None

    def is_held(self, held: Any) -> bool:
        return bool(held.locked() > 0)

    def extend(self, held: Any) -> bool:
        return _succeeds(held.extend, peer("pottery").ExtendUnlockedLock)

    def release(self, held: Any) -> bool:
        return _succeeds(held.release, peer("pottery").ReleaseUnlockedLock)

    def close(self) -> None:
        self._client.close()


class Sherlock(Adapter):
    """sherlock.RedisLock. Its `locked()` is true while any client holds the lock, so it is not used here."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = _redis(url)

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        kind = peer("sherlock").RedisLock
        lock = kind(name, client=self._client, expire=round(ttl), timeout=max(timeout, 0.001))
        try:
            return lock if lock.acquire(blocking=timeout > 0) else None
        except peer("sherlock").LockTimeoutException:
            return None

    def is_held(self, held: Any) -> bool:
        return getattr(held, "is_renewed", True)

    def extend(self, held: Any) -> bool:
        held.is_renewed = held.renew()
        return bool(held.is_renewed)

    def release(self, held: Any) -> bool:
        return _succeeds(held.release, peer("sherlock").LockException)

    def close(self) -> None:
        self._client.close()


class ToozRedis(Adapter):
    """The lock of tooz on Redis, renewed by its own thread."""

    renews = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        options = f"lock_timeout=2&timeout=2&socket_timeout={_SOCKET_TIMEOUT}"
        self._coordinator = peer("tooz.coordination").get_coordinator(f"{url}?{options}", os.urandom(8).hex().encode())
        self._coordinator.start(start_heart=True)

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        lock = self._coordinator.get_lock(name.encode())
        return lock if lock.acquire(blocking=timeout or False) else None

    def is_held(self, held: Any) -> bool:
        return bool(held.is_still_owner())

    def release(self, held: Any) -> bool:
        return bool(held.release())

    def close(self) -> None:
        self._coordinator.stop()


class Kazoo(Adapter):
    """kazoo.recipe.lock.Lock, with the state of the connection, as its documentation recommends."""

    renews = True  # the session is kept alive

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = peer("kazoo.client").KazooClient(urlsplit(url).netloc, timeout=2.0)
        self._client.start()

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        lock = self._client.Lock(f"/safety/{name}")
        try:
            acquired = lock.acquire(timeout=timeout) if timeout else lock.acquire(blocking=False)
        except peer("kazoo.exceptions").LockTimeout:
            return None
        return lock if acquired else None

    def is_held(self, held: Any) -> bool:
        return bool(held.is_acquired and self._client.state == "CONNECTED")

    def release(self, held: Any) -> bool:
        return bool(held.release())

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class FileLock(Adapter):
    """filelock.FileLock in the directory of the URL."""

    renews = True  # the kernel holds it

    @classmethod
    def uses_network(cls, url: str) -> bool:  # noqa: ARG003  (the interface)
        return False

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        lock = peer("filelock").FileLock(_path(self.url, name), thread_local=False)
        try:
            lock.acquire(timeout=timeout)
        except peer("filelock").Timeout:
            return None
        return lock

    def is_held(self, held: Any) -> bool:
        return bool(held.is_locked)

    def release(self, held: Any) -> bool:
        held.release()
        return True


def _path(url: str, name: str) -> str:
    return os.path.join(urlsplit(url).path, name.replace("/", "_"))


def _succeeds(call: Any, refusal: type[Exception]) -> bool:
    """False if the library says by this exception that the lock is not held any more."""
    try:
        call()
    except refusal:
        return False
    return True
