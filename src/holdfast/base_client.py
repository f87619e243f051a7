"""The base of Client and AsyncClient: everything that needs no request."""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar, Unpack, cast

from holdfast.core import names
from holdfast.core.acquire_all import LockIdentity, Part, acquire_all, in_order
from holdfast.core.decorators import Plan
from holdfast.core.engine import Engine
from holdfast.core.events import Event, Events
from holdfast.core.lease_groups import LeaseGroup, shown
from holdfast.core.leases import AcquireResult, BaseLease, LockSpec
from holdfast.core.locks import AllOptions, BaseLock, LockOptions, make_spec
from holdfast.core.names import Duration
from holdfast.core.ports import Caller
from holdfast.core.requests import RequestObserver
from holdfast.core.stats import Stats
from holdfast.core.transfers import Transfer, decode_transfer, encode_transfer
from holdfast.default_url import default_url, naming_the_variable
from holdfast.errors import ConfigurationError, UsageError
from holdfast.guarantees import Guarantees, Requirements
from holdfast.primitives import Primitive
from holdfast.requirements import Requirement, require_primitive
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex
from holdfast.url import Address, OptionValue, PasswordFunction, joined, opener, parse, scheme_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection as AsyncPsycopgConnection
    from psycopg import Connection as PsycopgConnection
    from pymysql.connections import Connection
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster

    class PsycopgPool(Protocol):
        """A ConnectionPool or AsyncConnectionPool of psycopg_pool."""

        conninfo: Any
        kwargs: Any
        connection_class: Any

    class SqlEngine(Protocol):
        """An Engine or AsyncEngine of SQLAlchemy."""

        @property
        def dialect(self) -> Any: ...
        @property
        def url(self) -> Any: ...

    RedisStore = Redis | RedisCluster | AsyncRedis | AsyncRedisCluster
    MysqlStore = Connection[Any] | Callable[[], Connection[Any]]
    PostgresqlStore = PsycopgConnection[Any] | AsyncPsycopgConnection[Any] | PsycopgPool
    Servers = Sequence[str] | Sequence[Redis] | Sequence[AsyncRedis]  # independent ones
    # A KazooClient has no types, so type checkers accept it here.
    Store = str | Servers | RedisStore | MysqlStore | PostgresqlStore | SqlEngine

DEFAULT_TTL = 30.0
_OF_THE_WHOLE = ("timeout", "on_lost")  # options of lock_all() that its locks do not get

LeaseT = TypeVar("LeaseT", bound=BaseLease)
LockT = TypeVar("LockT", bound=BaseLock[Any])
SemaphoreT = TypeVar("SemaphoreT")
RWLockT = TypeVar("RWLockT")
LockAllT = TypeVar("LockAllT")
LeaseAllT = TypeVar("LeaseAllT", bound=LeaseGroup)
T = TypeVar("T")


class BaseRWLock(Generic[LockT]):
    """A lock for many readers or one writer, served in order: a waiting writer blocks later readers."""

    def __init__(self, read: LockT, write: LockT, require_readers: Callable[[], None]) -> None:
        """`require_readers` raises if the store has no readers. Writers need no readers."""
        self._read = read
        self._write = write
        self._require_readers = require_readers

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._write.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def read(self) -> LockT:
        """The lock for readers; the same object each time.

        Raises:
            Unsupported: this store has no readers.
        """
        self._require_readers()
        return self._read

    def write(self) -> LockT:
        """The lock for writers; the same object each time."""
        return self._write


class BaseLockAll(BaseLock[LeaseAllT]):
    """Several named locks, acquired as one."""

    def __init__(self, locks: Sequence[BaseLock[Any]], spec: LockSpec, timeout: float | None) -> None:
        super().__init__(spec._replace(name=shown([lock.name for lock in locks])), timeout)
        self._locks = tuple(locks)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return tuple(lock.name for lock in self._locks)

    @property
    def held(self) -> bool:
        """This thread or task holds them, by the local clock."""
        return super().held

    def _caller(self) -> Caller:
        return self._locks[0]._caller()

    def _acquire_all(
        self, kind: Callable[..., LeaseAllT], timeout: float | None, caller: Caller
    ) -> Coroutine[Any, Any, AcquireResult[LeaseAllT]]:
        """Acquire all locks for this caller. `kind` makes one object of their leases."""
        parts: list[Part[Any]] = [Part(lock._client._engine, lock) for lock in self._locks]

        def together(leases: Sequence[BaseLease]) -> LeaseAllT:
            made = kind(leases, self._spec.on_lost, parts[0].engine.runtime)
            self._keep(caller, made)
            return made

        return acquire_all(parts, timeout, together, caller)


class BaseClient(system.Forkable, ABC, Generic[LeaseT, LockT, SemaphoreT, RWLockT, LockAllT]):
    """Locks on one store. Everything here is local; the subclasses add the requests."""

    _runtime_name: ClassVar[str]  # of the module in the backend's folder
    _lock_type: Callable[..., LockT]
    _semaphore_type: Callable[..., SemaphoreT]
    _rwlock_type: Callable[..., RWLockT]
    _lock_all_type: Callable[..., LockAllT]

    def __init__(
        self,
        url: Store | None = None,
        *,
        ttl: Duration = DEFAULT_TTL,
        require: Requirements | None = None,
        password: str | PasswordFunction | None = None,
        **options: OptionValue,
    ) -> None:
        _refuse_eventlet()
        if password is not None:
            options["password"] = password
        self._url = default_url() if url is None else joined(url)
        self._options = options
        self._ttl = names.check_ttl(ttl)
        self._required = None if require is None else Requirement.of(require)
        self._events = Events()
        self._closed = False
        self._starting = Mutex()
        with naming_the_variable(url):
            self._address: Address = parse(self._url, options)
            self._open = opener(self._address, self._runtime_name)
            self._current: Engine[LeaseT] | None = self._start()
        if self._required is not None:
            self._required.require(self.url, self._current.backend.guarantees)
        system.on_fork(self)

    def lock(self, name: str, **options: Unpack[LockOptions]) -> LockT:
        """A lock that one caller may hold at a time.

        Durations are numbers of seconds, timedeltas, or text such as "500ms", "30s", "15m", "1h", "1d", "1w".

        Args:
            name: The name that all users of the lock share: any text up to 512 characters, case-sensitive.
            ttl: Seconds that a lease lives without renewal. Default: that of the client, 30.
            timeout: Seconds that `with` and `acquire()` wait; None waits forever, 0 does not wait.
            reentrant: The thread or task that holds it may acquire it again: the same lease, counted.
            renew: Renew the lease automatically every third of its ttl, until it is released. Default: True.
            max_hold: The lease is lost after this many seconds, even if it was renewed.
            stop_margin: Report a loss this many seconds before the deadline, so that work can end in time.
            meta: JSON data that operators see with the holder.
            on_lost: A function to call with the lease when it is lost. In asyncio a loss also cancels the body of
                `async with`, which then raises LockLost; "event" leaves the body alone.
            lock_delay: After a lease was lost, not released, no client acquires the lock for this many seconds: time
                for the requests that its holder has sent to end.
            owner: A named owner. Callers with the same owner hold the lock together, in any process, with the same
                fence. All others wait until the last of them has released it.
            revocable: Poll for requests to release (`request_revoke`) at each renewal: `lease.revoke_requested`.
            on_revoke: A function to call with the lease at such a request; makes it revocable.
            detect_deadlocks: If several callers wait for each other in a cycle, and all their locks have this option,
                the youngest waiter raises WouldDeadlock, after about 2 s, and the others go on.
            min_hold: A release before this many seconds since the grant keeps others out until they are over, also if
                the process ends or is killed. The ttl is at least as long.
            group: The label of this lock in events and metrics. Default: its name with numbers, hexadecimal words and
                UUIDs replaced by `*`. A client has at most 100 groups; further ones are counted as `_other`.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
        """
        return self._make(self._lock_type, "lock", name, 1, exclusive=True, options=options)

    def rwlock(self, name: str, **options: Unpack[LockOptions]) -> RWLockT:
        """A lock for many readers or one writer. The options are those of `lock`."""
        read = self._make(self._lock_type, "rwlock", name, None, exclusive=False, options=options)
        write = self._make(self._lock_type, "rwlock", name, 1, exclusive=True, options=options)
        return self._rwlock_type(read, write, lambda: self._require_primitive(Primitive.RWLOCK))

    def semaphore(self, name: str, limit: int, **options: Unpack[LockOptions]) -> SemaphoreT:
        """A lock that `limit` callers may hold at a time; all must give the same limit. Options as for `lock`.

        Raises:
            Unsupported: this store has no semaphores.
        """
        checked = names.check_limit(limit)
        self._require_primitive(Primitive.SEMAPHORE)
        return self._make(self._semaphore_type, "semaphore", name, checked, exclusive=False, options=options)

    def lock_all(self, locks: Iterable[str | LockT], **options: Unpack[AllOptions]) -> LockAllT:
        """Several locks as one: all or none, within one timeout, and without deadlocks between `lock_all` calls.

        They are acquired in the order of their names, each once. If one is lost, all are lost, and they are released
        together. A caller that holds one of them is refused.

        Args:
            locks: Names, or locks that `lock` returned, also of other clients and stores.
            options: Those of `lock`, without reentrant. A lock object keeps its own ttl and options; timeout and
                on_lost apply to the whole.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
        """
        names.refuse_unknown("lock_all", options, AllOptions.__annotations__)
        if isinstance(locks, str):
            raise ConfigurationError(f"lock_all() takes a list of names: [{locks!r}], or use lock()")
        if not isinstance(locks, Iterable):
            raise ConfigurationError(f"lock_all() takes a list of names and locks, not {locks!r}")
        whole = cast("LockOptions", options)
        spec, timeout = make_spec("lock_all", "-", 1, exclusive=True, ttl=self._ttl, options=whole)
        each = cast("LockOptions", {name: value for name, value in options.items() if name not in _OF_THE_WHOLE})
        members: list[Any] = []
        lock_type: Any = self._lock_type
        for lock in locks:
            if isinstance(lock, str):
                members.append(self._make(self._lock_type, "lock_all", lock, 1, exclusive=True, options=each))
            elif not isinstance(lock, lock_type) or not lock._spec.exclusive:
                raise ConfigurationError(
                    f"lock_all() takes names and exclusive locks (client.lock, client.rwlock(…).write()), not {lock!r}"
                )
            else:
                spec_in_all = lock._spec._replace(on_lost=None, reentrant=False, primitive="lock_all", passable=False)
                members.append(lock_type(lock._client, spec_in_all, None))
        if not members:
            raise ConfigurationError("lock_all() needs at least one name")
        return self._lock_all_type(in_order(members, _identity_of), spec, timeout)

    def _prepare_adoption(self, text: object, options: LockOptions) -> tuple[LockT, Transfer]:
        """The lock whose lease the text adopts.

        Raises:
            ConfigurationError: the text or an option is refused.
        """
        refused = ("timeout", "owner", "detect_deadlocks", "min_hold")
        names.refuse_unknown("adopt", options, [name for name in LockOptions.__annotations__ if name not in refused])
        transfer, kind = decode_transfer(text), _kind_of(self._address.scheme)
        self._require_primitive(Primitive.TRANSFER)
        if transfer.store != kind:
            raise ConfigurationError(f"the text is for a lease on {transfer.store}, and this client uses {kind}")
        with_ttl: LockOptions = {"ttl": transfer.ttl, **options}
        return self._make(self._lock_type, "lock", transfer.name, 1, exclusive=True, options=with_ttl), transfer

    def subscribe(self, subscriber: Callable[[Event], object]) -> Callable[[], None]:
        """Call `subscriber` with every event of this client's leases. The returned function ends the subscription.

        Every `acquiring` is followed by exactly one `acquired` or `not acquired`, and every `acquired` by exactly one
        `lost` or `released`. Events are delivered in order. Those of a call (`acquiring`, `queued`, `acquired`, `not
        acquired`, `released`) are delivered on the caller's own thread or task before the call returns, unless earlier
        events are queued. `renewed`, `renewal failed`, `revoke requested` and `lost` are delivered on a thread of their
        own, in asyncio by the loop. A slow subscriber delays later events and no lease.
        """
        names.check_subscriber(subscriber)
        return self._events.subscribe(subscriber)

    def stats(self) -> Stats:
        """The leases, waiting callers and pending releases of this client in this process, now.

        Read from the state of the client, without a request. A forked child begins with none.
        """
        engine = self._current
        return Stats() if engine is None else engine.stats()

    def _observe_requests(self, observer: RequestObserver) -> Callable[[], None]:
        """Call `observer` after every request to the store, also of later engines; it must not wait for anything.

        The returned function ends that, and does not keep the client alive.
        """
        observers, observation, client = self._events.observers, object(), weakref.ref(self)

        def apply() -> None:
            engine = getattr(client(), "_current", None)
            if engine is not None:
                engine.observe_requests()

        def end() -> None:
            observers.pop(observation, None)
            apply()

        observers[observation] = observer
        apply()
        return end

    @property
    def guarantees(self) -> Guarantees:
        """The guarantees of this store, as data."""
        return self._started().backend.guarantees

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems of a store that still works, for example servers that do not answer."""
        return self._started().backend.warnings

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        """Descriptors for a process that works under a lease of this client.

        Pass them on: `subprocess.Popen(…, pass_fds=client.liveness_fds)`.

        Some stores release the locks of a dead process at once. Such a store takes the holder for alive while any
        process has these descriptors open. The ttl still applies: only this client renews the lease. Empty where only
        the ttl counts, and before the first use.
        """
        return self._started().backend.liveness_fds

    @property
    def troubles(self) -> tuple[str, ...]:
        """The former name of `warnings`."""
        return self.warnings

    @property
    def lifelines(self) -> tuple[int, ...]:
        """The former name of `liveness_fds`."""
        return self.liveness_fds

    @property
    def url(self) -> str:
        """The store's URL, without its password."""
        return self._address.redacted

    def _after_fork(self) -> None:
        """In a forked child: leases and connections belong to the parent."""
        self._starting = Mutex()  # another thread of the parent may have locked the old one
        if self._current is not None:
            self._current.abandon("this process is a fork: the lease belongs to its parent")
            self._current = None

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self._url, str):
            raise UsageError("a client made from a driver's client object cannot be pickled: make it from a url")
        require = None if self._required is None else self._required.least
        return (_remake, (type(self), self._url, self._ttl, self._options, require))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def _engine(self) -> Engine[LeaseT]:
        if self._closed:
            raise UsageError("this client is closed")
        return self._current or self._started()

    def _started(self) -> Engine[LeaseT]:
        """The engine. In a forked child several threads may call this first, and get the same one."""
        if self._current is None:
            with self._starting:
                if self._current is None:
                    engine = self._start()
                    if self._current is None:  # else a signal handler has used the client inside the call above
                        self._current = engine
        return self._current

    @abstractmethod
    def _start(self) -> Engine[LeaseT]:
        """A new engine on the runtime of this class."""

    def _make(
        self,
        kind: Callable[..., T],
        function: str,
        name: str,
        limit: int | None,
        *,
        exclusive: bool,
        options: LockOptions,
    ) -> T:
        spec, timeout = make_spec(function, name, limit, exclusive=exclusive, ttl=self._ttl, options=options)
        self._require_primitives(spec)
        return kind(self, spec, timeout)

    def _for_plan(self, plan: Plan) -> Self:
        """This client, for the calls of a decorated function. Raises Unsupported if it lacks a primitive for them."""
        if plan.period is not None:
            self._require_primitive(Primitive.ONCE_PER)
        self._require_primitives(plan.spec)
        return self

    def _for_once(self) -> Self:
        """This client, for `once`. Raises Unsupported if its store keeps no records."""
        self._require_primitive(Primitive.ONCE)
        return self

    def _require_primitives(self, spec: LockSpec) -> None:
        """Raise Unsupported if an option needs a primitive that this store lacks."""
        for primitive, is_required in (
            (Primitive.LOCK_DELAY, spec.lock_delay),
            (Primitive.OWNER, spec.owner),
            (Primitive.REVOKE, spec.revocable),
            (Primitive.DETECT_DEADLOCKS, spec.detect_deadlocks),
            (Primitive.MIN_HOLD, spec.min_hold),
        ):
            if is_required:
                self._require_primitive(primitive)

    def _require_primitive(self, primitive: Primitive) -> None:
        require_primitive(primitive, self.url, self._started().backend.lacks)


def check_renewal(leases: Iterable[BaseLease], ttl: object) -> float | None:
    """The ttl with which these leases are renewed; None if it does not change.

    Raises:
        ConfigurationError, Unsupported: one of them cannot have it.
    """
    if ttl is None:
        return None
    seconds = names.check_ttl(ttl)
    for lease in leases:
        backend = lease._engine.backend
        require_primitive(Primitive.RENEW_TTL, backend.url, backend.lacks)
        names.check_stop_margin(lease._spec.stop_margin, seconds)
    return seconds


def check_transfer(lease: BaseLease, within: object) -> float:
    """The time in which the lease can be adopted.

    Raises:
        ConfigurationError, Unsupported: it cannot be transferred.
    """
    seconds, spec, backend = names.check_within(within), lease._spec, lease._engine.backend
    if not spec.exclusive or spec.owner or spec.primitive in ("election", "lock_all"):
        refused = "a lease with an owner" if spec.owner else f"a lease of {spec.primitive}"
        raise ConfigurationError(f"{refused} cannot be transferred: only that of lock() or rwlock().write() can")
    require_primitive(Primitive.TRANSFER, backend.url, backend.lacks)
    return seconds


def transfer_text(lease: BaseLease, nonce: str, min_hold_left: float) -> str:
    """The text of a lease that was transferred: the nonce of its ticket, and the remaining seconds of its min_hold."""
    kind = _kind_of(lease._engine.backend.url.partition("://")[0])
    return encode_transfer(Transfer(kind, lease.name, nonce, lease.ttl, min_hold_left))


def _kind_of(scheme: str) -> str:
    return scheme_of(scheme).package.rpartition(".")[2]


def _refuse_eventlet() -> None:
    """Refuse eventlet: holdfast is not tested with its green threads."""
    patcher: Any = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, ("thread", "socket", "select"))):
        raise ConfigurationError(
            "eventlet has patched the standard library, and holdfast does not support eventlet: use threads, gevent or "
            "asyncio (the documentation of eventlet itself advises to migrate)"
        )


def _identity_of(lock: Any) -> LockIdentity:
    client = lock._client
    return LockIdentity(lock.name, _kind_of(client._address.scheme), client)


def _remake(
    kind: type[Any], url: str, ttl: float, options: dict[str, OptionValue], require: dict[str, Enum] | None
) -> Any:
    return kind(url, ttl=ttl, require=require, **options)
