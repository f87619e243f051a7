"""holdfast for threads. `aio.py` is its twin for asyncio: the same names and words, awaited; a test keeps it so."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, Unpack

from holdfast.core import names
from holdfast.core.engine import Attempt, Engine
from holdfast.core.events import Event, Events
from holdfast.core.handles import UNSET, Handle, LockOptions, Unset, make_terms
from holdfast.core.holds import Hold, Terms
from holdfast.core.tickets import LockInfo
from holdfast.errors import AcquireTimeout, HoldfastError, NotHeld, UsageError
from holdfast.guarantees import Guarantees
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import Address, default_url, opener, parse

DEFAULT_TTL = 30.0


class Lease(Hold):
    """One successful acquisition, until it is released or lost. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ()

    def release(self) -> None:
        """Give the lock back; from any thread.

        Raises:
            LockLost: the lease had ended or was taken before this; what was done since then was not protected.
            NotHeld: it was released before.
            BackendError: no answer came. The keeper goes on trying, and this may be called again.
        """
        run_sync(self._engine.release(self))

    def renew(self) -> None:
        """Keep the lock for another `ttl` seconds, counted from now; only renew=False makes this necessary.

        Raises:
            LockLost: the lease had ended or was taken; stop touching the resource.
            BackendError: no answer came; the old deadline still stands.
        """
        run_sync(self._engine.renew(self))

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost: True then; False when `timeout` seconds are over or it was released."""
        return run_sync(self._engine.wait_lost(self, names.check_timeout(timeout)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        except HoldfastError:
            raise
        except BaseException:
            self._engine.interrupted_leaving(self)
            raise

    def _leave(self, error: BaseException | None) -> None:
        try:
            run_sync(self._engine.leave_body(self))
        except HoldfastError as also:
            if error is None:
                raise
            error.add_note(f"holdfast: {also}")  # the body's own error goes first


class Lock(Handle[Lease]):
    """A named lock. Threads can share one object: what they hold is in the leases."""

    def __init__(self, client: Client, terms: Terms, timeout: float | None) -> None:
        super().__init__(terms, timeout)
        self._client = client

    def acquire(self, *, timeout: float | Unset | None = UNSET, **unknown: object) -> Lease | None:
        """Take the lock and return its Lease, or None when `timeout` seconds are over (0: do not wait, None: for ever).

        Raises:
            WouldDeadlock: this thread or task holds it already and it is not reentrant.
            LimitConflict: it is in use elsewhere with another limit.
            BackendUnavailable, OutcomeUnknown: the server could not be asked; never raised for "busy".
        """
        names.refuse_unknown("acquire", unknown)
        return self._attempt(self.waits(timeout)).lease

    def release(self) -> None:
        """Give back the lease that this thread or task took last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        self.last_of(self._client._engine.runtime.owner()).release()

    @property
    def held(self) -> bool:
        """This thread or task holds it, by the local clock."""
        return self.is_held_by(self._client._engine.runtime.owner())

    def locked(self) -> bool:
        """Somebody holds it now, says the server."""
        return bool(self._client.inspect(self.name).holders)

    def __enter__(self) -> Lease:
        attempt = self._attempt(self._timeout)
        if attempt.lease is not None:
            return attempt.lease
        raise AcquireTimeout(lock=self.name, waited=attempt.waited, holder=attempt.holder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.last_of(self._client._engine.runtime.owner())._leave(error)
        except HoldfastError:
            raise
        except BaseException:
            engine = self._client._engine
            with contextlib.suppress(NotHeld):  # the release took effect before the interrupt
                engine.interrupted_leaving(self.last_of(engine.runtime.owner()))
            raise

    def _attempt(self, timeout: float | None) -> Attempt[Lease]:
        _warn_inside_loop()
        return run_sync(self._client._engine.acquire(self, timeout))


class Semaphore(Lock):
    """A lock that `limit` may hold at once; one owner may take several permits."""


class RWLock:
    """A lock that many may read or one may write. Served in order: a waiting writer keeps later readers out."""

    def __init__(self, read: Lock, write: Lock) -> None:
        self._read = read
        self._write = write

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._read.name

    def read(self) -> Lock:
        """The lock as a reader takes it; the same object each time."""
        return self._read

    def write(self) -> Lock:
        """The lock as a writer takes it; the same object each time."""
        return self._write


class Client:
    """Locks on one store: `url`, or $HOLDFAST_URL, or a file in the user's state folder.

    >>> import holdfast
    >>> client = holdfast.Client("memory://")
    >>> with client.lock("report", ttl=10, timeout=5) as lease:
    ...     lease.check()
    ...     client.lock("report").acquire(timeout=0) is None
    True
    >>> client.close()
    """

    def __init__(self, url: str | None = None, *, ttl: float = DEFAULT_TTL) -> None:
        self._url = default_url() if url is None else url
        self._ttl = names.check_ttl(ttl)
        self._address: Address = parse(self._url)
        self._open = opener(self._address, "blocking")
        self._events = Events()
        self._closed = False
        self._current: Engine[Lease] | None = self._start()
        system.on_fork(self)

    def lock(self, name: str, **options: Unpack[LockOptions]) -> Lock:
        """A lock that one may hold at a time.

        Args:
            name: What its users agree on: any text up to 512 characters, exact and case-sensitive.
            ttl: How long a lease lives without renewal, in seconds. Default: the client's, 30.
            timeout: How long `with` and `acquire()` wait, in seconds; None waits for ever, 0 does not wait.
            reentrant: Let the thread or task that holds it take it again: the same lease, counted.
            renew: Renew the lease by itself every third of its ttl, until it is released. Default: True.
            max_hold: Lose the lease after this many seconds, however often it was renewed.
            stop_margin: Tell of a loss this many seconds before the deadline, so that work can end in time.
            meta: Anything JSON can write; operators see it with the holder.
            on_lost: A function to call with the lease when it is lost. In asyncio a loss also cancels the body of
                `async with`, which then raises LockLost; "event" leaves the body alone.

        Raises:
            ConfigurationError: an argument is refused; says which and why.
        """
        return Lock(self, *make_terms("lock", name, 1, exclusive=True, ttl=self._ttl, options=options))

    def rwlock(self, name: str, **options: Unpack[LockOptions]) -> RWLock:
        """A lock that many may read or one may write; the options are those of `lock`."""
        read = make_terms("rwlock", name, None, exclusive=False, ttl=self._ttl, options=options)
        write = make_terms("rwlock", name, 1, exclusive=True, ttl=self._ttl, options=options)
        return RWLock(Lock(self, *read), Lock(self, *write))

    def semaphore(self, name: str, limit: int, **options: Unpack[LockOptions]) -> Semaphore:
        """A lock that `limit` may hold at a time; its users must agree on that. The options are those of `lock`."""
        checked = names.check_limit(limit)
        return Semaphore(self, *make_terms("semaphore", name, checked, exclusive=False, ttl=self._ttl, options=options))

    def inspect(self, name: str) -> LockInfo:
        """Who holds the lock and who waits for it, in order, says the server."""
        return run_sync(self._engine.inspect(names.check_name(name)))

    def locks(self, prefix: str = "") -> list[LockInfo]:
        """All locks that somebody holds or waits for and whose names begin with `prefix`."""
        return run_sync(self._engine.locks(names.check_prefix(prefix)))

    def break_lock(self, name: str, fence: int) -> bool:
        """End the lease that has exactly this fence, whoever holds it; False if there is none any more.

        The holder learns of it at its next renewal at the latest, and may work on until then: the fence of the next
        lease is greater, so a resource that checks fences is safe.
        """
        return run_sync(self._engine.break_lock(names.check_name(name), names.check_fence(fence)))

    def subscribe(self, subscriber: Callable[[Event], object]) -> Callable[[], None]:
        """Have every event of this client's leases passed to `subscriber`; the returned function ends that."""
        return self._events.subscribe(subscriber)

    @property
    def guarantees(self) -> Guarantees:
        """What this store promises, as data."""
        return self._engine.backend.guarantees

    @property
    def url(self) -> str:
        """The store's URL, without its password."""
        return self._address.redacted

    def close(self) -> None:
        """Release what this client holds and let go of the store. Closing twice does nothing."""
        if self._closed:
            return
        engine = self._engine
        self._closed = True
        run_sync(engine.close())

    def before_fork(self) -> None:
        """Nothing to prepare here. Called by the runtime."""

    def after_fork_in_parent(self) -> None:
        """Nothing changes here. Called by the runtime."""

    def after_fork(self) -> None:
        """In a forked child: nothing of the parent's is ours. Called by the runtime."""
        if self._current is not None:
            self._current.abandon("this process is a fork: the lease belongs to its parent")
            self._current = None

    @property
    def _engine(self) -> Engine[Lease]:
        if self._closed:
            raise UsageError("this client is closed")
        if self._current is None:
            self._current = self._start()
        return self._current

    def _start(self) -> Engine[Lease]:
        runtime = ThreadRuntime()
        return Engine(self._open(self._address, runtime), runtime, self._events, Lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_make_client, (self._url, self._ttl))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def default_client() -> Client:
    """The client behind `holdfast.lock`: made at first use, closed at exit."""
    global _default
    with _default_mutex:
        if _default is None or _default._closed:
            _default = Client()
            atexit.register(_default.close)
        return _default


def lock(name: str, **options: Unpack[LockOptions]) -> Lock:
    """`Client.lock` on the default store: $HOLDFAST_URL, or a file in the user's state folder."""
    return default_client().lock(name, **options)


def rwlock(name: str, **options: Unpack[LockOptions]) -> RWLock:
    """`Client.rwlock` on the default store."""
    return default_client().rwlock(name, **options)


def semaphore(name: str, limit: int, **options: Unpack[LockOptions]) -> Semaphore:
    """`Client.semaphore` on the default store."""
    return default_client().semaphore(name, limit, **options)


_default: Client | None = None
_default_mutex = threading.Lock()
_warned_inside_loop = False


def _make_client(url: str, ttl: float) -> Client:
    return Client(url, ttl=ttl)


def _warn_inside_loop() -> None:
    """A sync lock inside a running loop stops every task of that loop while it waits: say so once."""
    global _warned_inside_loop
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or _warned_inside_loop or asyncio._get_running_loop() is None:
        return
    _warned_inside_loop = True
    warnings.warn(
        "holdfast.Client is used inside a running event loop, which stands still while it waits: "
        "use holdfast.AsyncClient there",
        RuntimeWarning,
        stacklevel=4,  # whoever called acquire() or entered the `with`
    )
