"""The base of Lock and AsyncLock: their options, and the leases that each thread or task acquired through them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from holdfast.core import names
from holdfast.core.leases import BaseLease, LockSpec, OnLost, Phase
from holdfast.core.names import Duration
from holdfast.errors import ConfigurationError, NotHeld

if TYPE_CHECKING:
    from holdfast.core.lease_groups import LeaseGroup
    from holdfast.core.ports import Caller, PreparesRequests
    from holdfast.core.straight_path import StraightPath

L = TypeVar("L", bound="BaseLease | LeaseGroup")


class Unset:
    """The default of an argument for which None has a meaning."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()
ACQUIRE_OPTIONS = ("blocking", "timeout")


class Kept(list[L]):
    """The leases that one caller acquired through one lock. They are dropped with the caller, and then expire.

    A WeakKeyDictionary would work too, but would add several times the cost to every acquire.
    """

    __slots__ = ("_caller_ref", "path", "prepared_by")

    def __init__(self, caller: Caller, table: _Table[L]) -> None:
        super().__init__()
        self.path: StraightPath | None = None  # of the engine; None: there is none, or it is not prepared yet
        self.prepared_by: PreparesRequests | None = None
        number = id(caller)  # no other object has this id until the caller is freed and this entry is removed
        table_ref = weakref.ref(table)  # weak: a lease that no variable refers to is dropped at once, not by the gc

        def forget(_: object) -> None:
            table = table_ref()
            if table is not None:
                table.pop(number, None)

        self._caller_ref = weakref.ref(caller, forget)


class _Table(dict[int, Kept[L]]):
    __slots__ = ("__weakref__",)


class BaseLock(Generic[L]):
    """A named lock and its options. The state is in the leases, so threads and tasks can share one object."""

    _client: Any  # of the locks of one client
    _given_up = False  # an election was stopped: callers that wait through this object stop waiting

    def __init__(self, spec: LockSpec, timeout: float | None) -> None:
        self._spec = spec
        self._timeout = timeout
        self._kept: _Table[L] = _Table()  # by id(caller), while the caller lives

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._spec.name

    @property
    def held(self) -> bool:
        """This thread or task holds it, by the local clock."""
        return any(lease.held for lease in self._kept.get(id(self._caller()), ()))

    def _keep(self, caller: Caller, lease: L) -> None:
        """Keep a lease for the caller that acquired it through this object."""
        leases = self._kept.get(id(caller))
        if leases is None:
            leases = self._kept[id(caller)] = Kept(caller, self._kept)
        elif leases:
            if lease in leases:
                return
            for ended in [lease for lease in leases if lease._phase not in _UNFINISHED]:
                leases.remove(ended)
        leases.append(lease)

    def _last_of(self, caller: Caller) -> L:
        """The lease that this caller acquired last and has not released.

        Raises:
            NotHeld: there is none.
        """
        for lease in reversed(self._kept.get(id(caller), ())):
            if lease._phase in _UNFINISHED:
                return lease
        raise NotHeld(
            lock=self.name,
            reason="this thread or task did not acquire it through this object; `lease.release()` works from any",
        )

    def _last_entered(self) -> L:
        return self._last_of(self._caller())

    def _caller(self) -> Caller:
        caller: Caller = self._client._engine.runtime.caller()
        return caller

    def _timeout_of(self, blocking: object, timeout: Duration | Unset | None) -> float | None:
        """The timeout of this call: its own if given, else the lock's; 0 for a call that does not block.

        Raises:
            ConfigurationError: names the argument and the fix.
        """
        if blocking is not True:
            names.check_flag("blocking", blocking, ": timeout= is how long to wait")
            if not isinstance(timeout, Unset):
                raise ConfigurationError("blocking=False does not wait: give either blocking or timeout")
            return 0.0
        return self._timeout if isinstance(timeout, Unset) else names.check_timeout(timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ttl={self._spec.ttl:g}>"


_UNFINISHED = (Phase.HELD, Phase.UNCONFIRMED, Phase.LOST)


class AllOptions(TypedDict, total=False):
    """The options of lock_all(): those of lock(), without reentrant."""

    ttl: Duration | None  # how long a lease lives without renewal; default: that of the client, 30
    timeout: Duration | None  # how long `with` and `acquire()` wait; None (the default): no limit, 0: do not wait
    renew: bool  # renew the lease automatically every third of its ttl (the default)
    max_hold: Duration | None  # the lease is lost after this time, even if it was renewed
    stop_margin: Duration  # report a loss this long before the deadline, so that work can end in time
    meta: Mapping[str, Any] | None  # JSON data for operators, shown with the holder
    on_lost: OnLost  # a function to call with the lost lease; "event": asyncio does not cancel the body
    lock_delay: Duration  # after a loss, no client acquires the lock for this time
    owner: str | None  # a named owner: callers with the same owner hold the lock together, in any process
    revocable: bool  # poll for requests to release: lease.revoke_requested
    on_revoke: Callable[..., object] | None  # a function to call with the lease at such a request
    detect_deadlocks: bool  # the youngest of several callers that wait for each other raises WouldDeadlock
    min_hold: Duration  # a release before this time keeps others out until it is over, also if the process ends
    group: str | None  # the label of this lock in events and metrics; default: its name with numbers replaced by *


class LockOptions(AllOptions, total=False):
    """The options of lock(), rwlock() and semaphore(). Durations: seconds, a timedelta, or "30s", "15m", "1h"."""

    reentrant: bool  # the thread or task that holds it may acquire it again: the same lease, counted


def make_spec(
    function: str, name: object, limit: int | None, *, exclusive: bool, ttl: float, options: LockOptions
) -> tuple[LockSpec, float | None]:
    """Check the arguments of a lock and return its specification and its timeout.

    Raises:
        ConfigurationError: names the argument and the fix.
    """
    names.refuse_unknown(function, options, LockOptions.__annotations__)
    checked_name, checked_meta = names.check_lock_name(name), names.check_meta(options.get("meta"))
    requested_ttl = options.get("ttl")
    checked_ttl = ttl if requested_ttl is None else names.check_ttl(requested_ttl)
    reentrant = names.check_flag("reentrant", options.get("reentrant", False))
    renew = names.check_flag("renew", options.get("renew", True))
    lock_delay = names.check_lock_delay(options.get("lock_delay", 0.0))
    spec = LockSpec(
        name=checked_name,
        ttl=checked_ttl,
        limit=limit,
        exclusive=exclusive,
        reentrant=reentrant,
        renew=renew,
        max_hold=names.check_max_hold(options.get("max_hold")),
        stop_margin=names.check_stop_margin(options.get("stop_margin", 0.0), checked_ttl),
        meta=checked_meta,
        about=f'"meta": {_as_json(checked_meta)}',
        on_lost=names.check_on_lost(options.get("on_lost")),
        lock_delay=lock_delay,
        primitive=function if function != "rwlock" else "rwlock.write" if exclusive else "rwlock.read",
        group=names.check_group(options.get("group")),
        passable=function in _PASSABLE and exclusive and renew and not reentrant and not lock_delay,
    )
    if not _RARE_OPTIONS.isdisjoint(options):
        spec = _with_others(function, spec, options)
    return spec, names.check_timeout(options.get("timeout"))


def make_call_spec(function: str, busy: object, *, ttl: float, options: LockOptions) -> tuple[LockSpec, float | None]:
    """The specification, without the name, and the timeout of the lock of each call of a function.

    `busy` says what a call does if it does not acquire the lock in time: "wait" (it raises), "skip" or "raise".

    Raises:
        ConfigurationError: names the argument and the fix.
    """
    spec, timeout = make_spec(function, "the name is known at the call", 1, exclusive=True, ttl=ttl, options=options)
    if busy == "raise" and timeout:
        raise ConfigurationError("busy='raise' does not wait: leave timeout out, or wait that long with busy='wait'")
    if busy == "skip" and "timeout" in options and timeout is None:
        raise ConfigurationError("busy='skip' would never skip with timeout=None: give seconds, or leave timeout out")
    return spec, timeout if busy == "wait" else timeout or 0.0


def _with_others(function: str, spec: LockSpec, options: LockOptions) -> LockSpec:
    """Add the rare options: a named owner, requests to release, the detection of deadlocks, and a minimum hold."""
    owner = names.check_owner(options.get("owner"))
    on_revoke = names.check_on_revoke(options.get("on_revoke"))
    revocable = names.check_flag("revocable", options.get("revocable", on_revoke is not None))
    detects = names.check_flag("detect_deadlocks", options.get("detect_deadlocks", False))
    min_hold = names.check_min_hold(options.get("min_hold", 0.0), spec.max_hold)
    conflicts = (
        (
            owner and not (spec.exclusive and function in _ONE_HOLDER),
            f"{function}() takes no owner: only lock() and lock_all() have named owners",
        ),
        (
            owner and spec.reentrant,
            "owner excludes reentrant=True: callers with the same owner hold the lock together",
        ),
        (
            on_revoke is not None and not revocable,
            "on_revoke is never called with revocable=False: remove one of them",
        ),
        (
            revocable and not spec.renew,
            "revocable needs renew=True: requests are polled when the lease is renewed",
        ),
        (
            detects and function in ("semaphore", "election"),
            f"{function}() takes no detect_deadlocks: only lock(), rwlock() and lock_all() do",
        ),
        (
            min_hold and function == "election",
            "election() takes no min_hold: a leader that resigns lets the next one lead at once",
        ),
        (
            min_hold and owner,
            "min_hold excludes owner: callers with the same owner do not keep each other out",
        ),
        (
            min_hold and detects,
            "min_hold excludes detect_deadlocks: a released lock that is kept is no deadlock",
        ),
    )
    for is_conflict, problem in conflicts:
        if is_conflict:
            raise ConfigurationError(problem)
    about = spec.about
    if owner:
        import json

        about += f', "owner": {json.dumps(owner)}'
    if revocable:
        about += ', "revocable": true'
    return spec._replace(
        ttl=max(spec.ttl, min_hold),
        about=about,
        owner=owner,
        revocable=revocable,
        on_revoke=on_revoke,
        detect_deadlocks=detects,
        min_hold=min_hold,
        passable=spec.passable and not (owner or revocable or detects or min_hold),
    )


_RARE_OPTIONS = frozenset(("owner", "revocable", "on_revoke", "detect_deadlocks", "min_hold"))
_PASSABLE = ("lock", "locked")
_ONE_HOLDER = ("lock", "locked", "once_per", "lock_all")


def _as_json(meta: Mapping[str, Any]) -> str:
    if not meta:
        return "{}"
    import json

    try:
        return json.dumps(dict(meta), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"meta must be JSON data: {error}") from None
