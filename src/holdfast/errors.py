"""Every error holdfast raises. Each says what happened, to which lock, and whose turn it is.

    HoldfastError
    ├── AcquireTimeout(TimeoutError)     the lock was busy: wait longer or go on without it
    ├── LockLost                         you had it and do not any more: stop
    ├── NotHeld                          you never had it: a bug in the calling code
    ├── WouldDeadlock                    you hold it already and it is not reentrant, or a cycle of waiters was found
    ├── StaleFence                       the resource has seen a newer holder: stop
    ├── OnceFailed                       an earlier run of this key failed, and is remembered
    ├── OnceInterrupted                  an earlier run of this key died in the middle: find out what it has done
    ├── OnceMismatch                     this key was used for another call: a bug in the calling code
    ├── BackendError                     the server could not be asked properly
    │   ├── BackendUnavailable           nothing changed there: retry freely
    │   ├── OutcomeUnknown               sent, no answer: it may have happened
    │   ├── QuorumError                  too few nodes answered; .causes says why, node by node
    │   └── AccessDenied                 this user lacks a permission; also a ConfigurationError
    ├── Unsupported                      this backend cannot promise that; says which can
    ├── ThreadStartError(RuntimeError)   this process may start no more threads: nothing is held, retry when it may
    ├── UsageError(RuntimeError)         called from the wrong place: another loop, a closed client
    └── ConfigurationError(ValueError)   an argument or setting is refused; says which and what to do
        ├── LimitConflict                two programs disagree on the limit of one lock
        └── NameConflict                 what the store has under this name cannot be used as this lock

Errors carry their data as attributes, build their own message and survive pickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class HoldfastError(Exception):
    """The base of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default, `cls(*args)`, does not work: the constructors take keywords and build the message.
        return (_restore, (type(self), self.args, self.__dict__))


class HoldfastWarning(UserWarning):
    """A setting that works but is probably a mistake; the message names the fix."""


class AcquireTimeout(HoldfastError, TimeoutError):
    """The lock was busy until the timeout."""

    def __init__(self, *, lock: str, waited: float, holder: str | None = None) -> None:
        held_by = f" (held by {holder})" if holder else ""
        super().__init__(f"lock {lock!r} not acquired in {waited:.1f} s{held_by}")
        self.lock, self.waited, self.holder = lock, waited, holder


class LockLost(HoldfastError):
    """The lease ended before it was released: stop using the resource."""

    def __init__(self, *, lock: str, fence: int, reason: str) -> None:
        super().__init__(f"lock {lock!r} (fence {fence}) was lost: {reason}")
        self.lock, self.fence, self.reason = lock, fence, reason


class NotHeld(HoldfastError):
    """Released without having been acquired, or twice: a bug in the calling code."""

    def __init__(self, *, lock: str, reason: str) -> None:
        super().__init__(f"lock {lock!r} is not held: {reason}")
        self.lock, self.reason = lock, reason


class WouldDeadlock(HoldfastError):
    """The caller would wait forever: for its own lease, or, with detect_deadlocks, in a cycle of callers.

    `fence` is the fence of the lease that blocks it; None if a waiter does. `cycle` describes each wait of the cycle.
    """

    def __init__(self, *, lock: str, fence: int | None, reason: str = "", cycle: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"lock {lock!r} is part of a deadlock, and this is its youngest waiter: {'; '.join(cycle)}"
            if cycle
            else f"lock {lock!r} is already held by this thread or task (fence {fence}): {reason}"
        )
        self.lock, self.fence, self.reason, self.cycle = lock, fence, reason, cycle


class StaleFence(HoldfastError):
    """The resource was written with a newer fence, so this lease is over, even if its holder does not know it.

    The write was not done. Discard the work (roll back a transaction), or acquire the lock again and start from the
    present state of the resource. Fences compare only within one lock of one backend, and only exclusive leases have
    different fences.
    """

    def __init__(self, *, resource: str, fence: int, newest: int | None) -> None:
        """`newest` is None if the resource only reports that it has a newer one."""
        seen = "a newer one" if newest is None else f"fence {newest}"
        super().__init__(
            f"{resource!r} refused fence {fence}: it has seen {seen}, so the lock has had another holder since, "
            "or its store was changed or reset; this write was not done, it is not your turn any more: stop"
        )
        self.resource, self.fence, self.newest = resource, fence, newest


class OnceFailed(HoldfastError):
    """An earlier run of this key has ended without a result: it raised, or its result could not be remembered.

    No call runs the key again before its retention is over, unless an operator forgets the record:
    `client.forget(key, fence=…)`.
    """

    def __init__(self, *, key: str, fence: int, error: str) -> None:
        super().__init__(f"once {key!r}: the run with fence {fence} has no result for later calls: {error}")
        self.key, self.fence, self.error = key, fence, error


class OnceInterrupted(HoldfastError):
    """The run of this key died or lost its lease before it was recorded as complete; its effects may have happened.

    `host` and `pid` name its process, `since` is the Unix time of its start. Find out what it has done; then
    `client.forget(key, fence=…)` allows another run.
    """

    def __init__(self, *, key: str, fence: int, host: str, pid: int, since: float) -> None:
        super().__init__(
            f"once {key!r}: the run with fence {fence} on {host}/{pid} was interrupted, and may have had effects; "
            f"forget it with this fence to allow another run"
        )
        self.key, self.fence, self.host, self.pid, self.since = key, fence, host, pid, since


class OnceMismatch(HoldfastError):
    """The run of this key had another `check`, so the same key was used for two different calls."""

    def __init__(self, *, key: str, fence: int) -> None:
        super().__init__(f"once {key!r}: the run with fence {fence} had another check: the key was used for two calls")
        self.key, self.fence = key, fence


class BackendError(HoldfastError):
    """A request to the server failed."""

    def __init__(self, *, backend: str, problem: str) -> None:
        super().__init__(f"{backend}: {problem}")
        self.backend, self.problem = backend, problem


class BackendUnavailable(BackendError):
    """Nothing was changed on the server, so the call can be repeated."""


class OutcomeUnknown(BackendError):
    """The request was sent and got no answer: it may have been executed."""


class QuorumError(BackendError):
    """Too few of several nodes answered, or may be counted. Some of them may have executed the request."""

    def __init__(self, *, backend: str, needed: int, nodes: int, causes: Mapping[str, HoldfastError]) -> None:
        why = "; ".join(f"{node}: {_problem(error).removeprefix(f'{node}: ')}" for node, error in causes.items())
        super().__init__(
            backend=backend,
            problem=f"{nodes - len(causes)} of {nodes} nodes answered and count, {needed} are needed ({why})",
        )
        self.needed, self.nodes, self.causes = needed, nodes, dict(causes)


class Unsupported(HoldfastError):
    """This backend lacks that primitive or guarantee."""

    def __init__(self, *, backend: str, what: str, others: tuple[str, ...] = ()) -> None:
        can = f"; these can: {', '.join(others)}" if others else ""
        super().__init__(f"{backend} does not support {what}{can}")
        self.backend, self.what, self.others = backend, what, others


class ThreadStartError(HoldfastError, RuntimeError):
    """The operating system or the interpreter refused to start a thread that the client needs.

    A limit on processes or memory is reached, or the interpreter is a subinterpreter without threads. A lock that was
    granted is released. The client stays usable, and the call can be repeated.
    """

    def __init__(self, *, thread: str, problem: str) -> None:
        super().__init__(f"the thread {thread!r} could not be started: {problem}")
        self.thread, self.problem = thread, problem


class UsageError(HoldfastError, RuntimeError):
    """The call is not possible here: another event loop, or a closed client."""


class ConfigurationError(HoldfastError, ValueError):
    """An argument, a URL or a setting was refused; the message names it and the fix."""


class AccessDenied(BackendError, ConfigurationError):
    """The server refused a request because this user lacks a permission; the message names what to grant.

    The refused request changed nothing. An acquire raises it at once, also while it waits. A lease whose renewals are
    refused is lost at its deadline, and a refused release is repeated in the background.
    """


class LimitConflict(ConfigurationError):
    """The same lock is in use with another limit. Detected on the server, so only at acquire."""

    def __init__(self, *, lock: str, ours: int | None, theirs: int | None, holder: str | None = None) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(
            f"lock {lock!r} is in use{by} as {_shape(theirs)}, not as {_shape(ours)}: "
            "give all programs the same limit, or use another name"
        )
        self.lock, self.ours, self.theirs, self.holder = lock, ours, theirs, holder


class NameConflict(ConfigurationError):
    """The store has other data under the name of this lock. Detected on the server, so only at acquire."""

    def __init__(self, *, lock: str, reason: str) -> None:
        super().__init__(f"lock {lock!r} cannot be used: {reason}")
        self.lock, self.reason = lock, reason


def _problem(error: HoldfastError) -> str:
    return error.problem if isinstance(error, BackendError) else str(error)


def _shape(limit: int | None) -> str:
    return "a reader/writer lock" if limit is None else f"a semaphore with limit={limit}"


def _restore(cls: type[HoldfastError], args: tuple[Any, ...], state: dict[str, Any]) -> HoldfastError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error
