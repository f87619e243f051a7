"""Locks around Celery tasks, and messages that are queued and run once: `pip install 'holdfast[celery]'`.

    @app.task(acks_late=True)
    @holdfast.celery.exclusive(client, "account:{account}")
    def settle(account): …

    @app.task(acks_late=True, reject_on_worker_lost=True)
    @holdfast.celery.once(client)
    def charge(invoice): …

    holdfast.celery.apply_once(charge, "invoice:7", args=[7])

docs/celery.md and docs/celery-once.md are the guides. The locks and records are those of any other client: nothing here
depends on the broker.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, overload

try:
    from celery import current_task, signals
    from celery.exceptions import Ignore, Reject
except ImportError as error:
    raise ImportError("holdfast.celery needs Celery: pip install 'holdfast[celery]'") from error

from holdfast.core import names
from holdfast.core.decorators import Plan, check_function, make_plan_locked, show_signature, spec_of, with_lease
from holdfast.core.locks import UNSET, LockOptions
from holdfast.core.names import Duration
from holdfast.core.once import RESULT_MAX, OnceOptions, make_once_plan
from holdfast.errors import AcquireTimeout, ConfigurationError
from holdfast.runtimes.threads import Mutex, mutex_of_process, start_thread
from holdfast.threads.client import Client
from holdfast.threads.decorators import Locked, LockedOrSkipped, LockedOrSkippedWithLease, LockedWithLease, decorated
from holdfast.threads.locks import Lease

P = ParamSpec("P")
T = TypeVar("T")
Made = TypeVar("Made")

ClientOrFunction = Client | Callable[[], Client]
Countdown = Duration | Callable[[int], float] | None

_BUSY = ("retry", "skip", "wait")
_COUNT_HEADER = "holdfast-busy"  # how often this message was put back because of a busy lock
_KEY_HEADER = "holdfast-once"  # the key of apply_once, its retention, and the fence of the record of its queueing
_COUNTDOWN_MAX = 60.0  # seconds, of the default


@overload
def exclusive(
    client: ClientOrFunction,
    name: str | None = None,
    *,
    name_of: Callable[..., str] | None = None,
    busy: Literal["retry", "wait"] = "retry",
    countdown: Countdown = None,
    max_retries: int | None = None,
    lease: None = None,
    **options: Unpack[LockOptions],
) -> Locked: ...


@overload
def exclusive(
    client: ClientOrFunction,
    name: str | None = None,
    *,
    name_of: Callable[..., str] | None = None,
    busy: Literal["retry", "wait"] = "retry",
    countdown: Countdown = None,
    max_retries: int | None = None,
    lease: str,
    **options: Unpack[LockOptions],
) -> LockedWithLease: ...


@overload
def exclusive(
    client: ClientOrFunction,
    name: str | None = None,
    *,
    name_of: Callable[..., str] | None = None,
    busy: Literal["skip"],
    skipped: object = UNSET,
    lease: None = None,
    **options: Unpack[LockOptions],
) -> LockedOrSkipped[Any]: ...


@overload
def exclusive(
    client: ClientOrFunction,
    name: str | None = None,
    *,
    name_of: Callable[..., str] | None = None,
    busy: Literal["skip"],
    skipped: object = UNSET,
    lease: str,
    **options: Unpack[LockOptions],
) -> LockedOrSkippedWithLease[Any]: ...


def exclusive(
    client: ClientOrFunction,
    name: str | None = None,
    *,
    name_of: Callable[..., str] | None = None,
    busy: str = "retry",
    countdown: Countdown = None,
    max_retries: int | None = None,
    skipped: object = UNSET,
    lease: str | None = None,
    **options: Unpack[LockOptions],
) -> Any:
    """A decorator below `@app.task`: the body runs under the lock that the arguments name.

    The lock is acquired when a worker runs the task, not when it is queued, and renewed for as long as the body runs.
    If the lease is lost, the task fails with LockLost. In the main thread of a process (the pools prefork and solo) the
    body is interrupted by that error, as by a soft time limit, unless on_lost="event".

    Args:
        client: A Client, or a function that returns one: it is called once in each process, at the first run.
        name: Text with fields over the parameters, as in `Client.locked`: "account:{account}".
        name_of: Instead of `name`: a function of the same arguments that returns the name.
        busy: "retry" puts the message back into the queue, by Celery's retry; "skip" ends the task with the result
            `skipped`; "wait" waits in the worker for `timeout` seconds, then the task fails with AcquireTimeout.
        countdown: With busy="retry": seconds until the next attempt, or a function of the number of earlier attempts.
            Default: random, up to 1, 2, 4, … 60 seconds.
        max_retries: With busy="retry": fail with AcquireTimeout after so many retries. Default: no limit. They do not
            count as retries of the task.
        skipped: The result with busy="skip". Default: None.
        lease: The parameter that is filled in with the Lease, as in `Client.locked`: the first one, or the one after
            self.
        options: Those of `Client.lock`. `timeout` is how long a worker waits first; its default is 0.

    Outside of a worker, with `task.apply()` and with task_always_eager, a busy lock raises AcquireTimeout.

    Raises:
        ConfigurationError: an argument, a field or the kind of function is refused.
    """
    if busy not in _BUSY:
        raise ConfigurationError(f"busy must be 'retry', 'skip' or 'wait', not {busy!r}")
    if busy == "wait" and "timeout" not in options:
        raise ConfigurationError("busy='wait' needs timeout=: a task that waits occupies its worker")
    if busy != "retry" and (countdown is not None or max_retries is not None):
        raise ConfigurationError("countdown and max_retries are for busy='retry'")
    requeue = _requeue(countdown, max_retries)

    def plan_for(ttl: float) -> Plan:
        return make_plan_locked(
            name,
            name_of,
            busy="wait" if busy == "wait" else "skip",
            skipped=skipped if busy == "skip" else UNSET,
            lease=lease,
            ttl=ttl,
            options=options,
        )

    if busy == "retry" and skipped is not UNSET:
        raise ConfigurationError("skipped is the result with busy='skip': give both, or none")
    plan_for(math.inf)

    def decorate(function: Callable[P, T]) -> Callable[P, Any]:
        _, signature = spec_of(plan_for(math.inf), function, is_async=False)
        call = with_lease(function, lease) if lease is not None else lambda _lease, a, k: function(*a, **k)

        def make(client: Client) -> Callable[..., Any]:
            plan = plan_for(client._ttl)
            client._require_primitives(plan.spec)
            body = call
            if plan.spec.on_lost != "event":
                body = functools.partial(_interruptible, call)
                plan = plan._replace(spec=plan.spec._replace(on_lost=_interrupting(plan.spec.on_lost)))
            return decorated(function, plan, lambda: client, call=body, on_busy=requeue if busy == "retry" else None)

        run_of = _of_each_process(client, make)

        @functools.wraps(function)
        def exclusive_task(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run_of()(*args, **kwargs)

        show_signature(exclusive_task, signature or inspect.signature(function))  # Celery checks arguments by it
        return exclusive_task

    return decorate


def once(
    client: ClientOrFunction,
    *,
    after_crash: Literal["retry", "raise", "skip"] = "retry",
    countdown: Countdown = None,
    ttl: Duration | None = None,
    max_hold: Duration | None = None,
) -> Locked:
    """A decorator below `@app.task`, for tasks that `apply_once` queues: of all messages with one key, one completes.

    Other messages of the task (`delay`, `apply_async`) run as usual. A message that arrives while another one with its
    key runs is put back into the queue. A message whose key has completed returns the remembered result; if that was no
    JSON of at most 60 KiB, it raises Ignore, so the result backend keeps the state that it has.

    Args:
        client: A Client, or a function that returns one: it is called once in each process, at the first use.
        after_crash: If the worker of a run died: "retry" lets the next message run; "raise" lets it fail with
            OnceInterrupted; "skip" ends it with the result None.
        countdown: As in `exclusive`: seconds until a message that was put back is delivered again.
        ttl: That of the lease of a run. Default: that of the client.
        max_hold: As in `Client.once`. Default: 7 days.

    Raises:
        ConfigurationError: an argument or the kind of function is refused.
    """
    requeue = _requeue(countdown, None)
    options: OnceOptions = {
        "result": True,
        "busy": "raise",
        "after_crash": after_crash,
        "ttl": ttl,
        "max_hold": max_hold,
    }
    make_once_plan("key", ttl=math.inf, options=options)
    client_of = _of_each_process(client, lambda made: made)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        check_function(function, None, is_async=False, decorator="once")

        @functools.wraps(function)
        def once_task(*args: P.args, **kwargs: P.kwargs) -> Any:
            message = _message_of(current_task)
            if message is None:
                return function(*args, **kwargs)
            results: list[T] = []
            is_started = False

            def run() -> dict[str, Any]:
                nonlocal is_started
                is_started = True
                results.append(function(*args, **kwargs))
                return _completion(current_task.request.id, results[0])

            of_message: OnceOptions = {**options, "retention": message["retention"]}
            try:
                outcome = client_of().once(message["key"], **of_message).run(run)
            except AcquireTimeout as busy:
                if is_started:  # the body raised it
                    raise
                return requeue(busy)
            if outcome.ran:
                return results[0]
            if outcome.value is None:  # after_crash="skip"
                return None
            if "result" not in outcome.value:
                raise Ignore
            return outcome.value["result"]

        once_task._holdfast_client = client_of  # type: ignore[attr-defined]  # apply_once uses it
        show_signature(once_task, inspect.signature(function))  # Celery checks arguments by it
        return once_task

    return decorate


def apply_once(
    task: Any,
    key: str,
    retention: Duration = "10m",
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Queue a message for the task, unless one with this key was queued or has completed within `retention`.

    At most one run of the task completes for a key until `retention` after its completion. A message is queued again if
    the run before failed, or if `retention` is over since it was queued: so a message that the broker loses blocks the
    key for that time, and no longer.

    Args:
        task: A task with `holdfast.celery.once` below `@app.task`. Keys of different tasks are different.
        key: The name of the work that is done once, such as "invoice:7".
        retention: How long the queueing and the completion are remembered.
        args: As in `apply_async`, and so are `kwargs` and `options` (countdown, queue, task_id, headers, …).

    Returns:
        The AsyncResult of the message with this key: of the new one, or of the one before.

    Raises:
        ConfigurationError: the task has no `once`, or an argument is refused.
        BackendError: the store does not answer. Nothing was queued, unless it is OutcomeUnknown; then a message may
            have been queued, and a repeated call may queue another one, which does not run if the first one does.
    """
    client_of = getattr(task.run, "_holdfast_client", None)
    if client_of is None:
        raise ConfigurationError(
            f"apply_once() is for tasks that run once: put @holdfast.celery.once(client) below @app.task of {task.name}"
        )
    seconds = names.check_duration("retention", retention)
    client: Client = client_of()
    run_key = f"{task.name}:{key}"
    completed = client.once(run_key).inspect()
    if completed is not None and completed.state == "done":
        return task.AsyncResult(completed.value["id"])
    sent: list[Any] = []

    def send(lease: Lease) -> str:
        message = {"key": run_key, "retention": seconds, "fence": lease.fence}
        headers = {**(options.get("headers") or {}), _KEY_HEADER: message}
        sent.append(task.apply_async(args, kwargs, **{**options, "headers": headers}))
        return str(sent[0].id)

    # A sender that dies may have queued its message. Then the next sender queues another one; only one completes.
    queued: Any = client.once(_queued(run_key), retention=seconds, result=True, after_crash="retry", lease="lease")
    outcome = queued.run(send)
    return sent[0] if outcome.ran else task.AsyncResult(outcome.value)


def _forget_queued(sender: Any = None, **_: Any) -> None:
    """The task has failed for good: its key can be queued again. If this raises, Celery logs it; the record expires."""
    message = _message_of(sender)
    if message is not None:
        client: Client = sender.run._holdfast_client()
        client.forget(_queued(message["key"]), fence=message["fence"])


signals.task_failure.connect(_forget_queued)


def _queued(run_key: str) -> str:
    return f"{run_key}:queued"


def _message_of(task: Any) -> dict[str, Any] | None:
    """The key with which the running message of this task was queued."""
    return (task.request.headers or {}).get(_KEY_HEADER) if task else None


def _completion(task_id: str | None, result: Any) -> dict[str, Any]:
    """The value that the record of a run keeps: the task id, and the result, if it can be stored."""
    with contextlib.suppress(TypeError, ValueError, RecursionError):  # then it is no JSON
        if len(json.dumps(result, allow_nan=False)) <= RESULT_MAX - 4096:  # the rest is for the id
            return {"id": task_id, "result": result}
    return {"id": task_id}


def _requeue(countdown: Countdown, max_retries: int | None) -> Callable[[AcquireTimeout], NoReturn]:
    """A function that puts the running message back into the queue, because its lock is busy."""
    if max_retries is not None and (type(max_retries) is not int or max_retries < 0):
        raise ConfigurationError(f"max_retries must be a number of retries, or None, not {max_retries!r}")
    if countdown is None:
        delay_of: Callable[[int], float] = _backoff
    elif callable(countdown):
        delay_of = countdown
    else:
        seconds = names.check_duration("countdown", countdown)

        def delay_of(_count: int) -> float:
            return seconds

    def requeue(busy: AcquireTimeout) -> NoReturn:
        task: Any = current_task
        # Celery repeats a task of apply() at once and recursively, without the countdown.
        if not task or task.request.called_directly or task.request.is_eager:
            raise busy
        request = task.request
        count = int((request.headers or {}).get(_COUNT_HEADER, 0))
        if max_retries is not None and count >= max_retries:
            raise busy
        headers = {**(request.headers or {}), _COUNT_HEADER: count + 1}
        # A busy lock is no failure: the number of retries, which limits those of errors, stays as it is.
        request.retries -= 1
        try:
            raise task.retry(exc=busy, countdown=delay_of(count), headers=headers)
        except Reject as error:  # the new message cannot be sent: keep this one, which Celery would drop
            raise Reject(error.reason, requeue=True) from error  # type: ignore[attr-defined]  # the stubs lack it
        finally:
            request.retries += 1

    return requeue


def _backoff(count: int) -> float:
    most = min(_COUNTDOWN_MAX, 2.0 ** min(count, 10))
    return random.uniform(most / 2, most)  # noqa: S311 - it spreads messages, no secret depends on it


def _of_each_process(client: object, make: Callable[[Client], Made]) -> Callable[[], Made]:
    """A function that returns what is made of the client. A function as client is called once in each process."""
    if isinstance(client, Client):
        made = make(client)
        return lambda: made
    if not callable(client) or isinstance(client, type):
        raise ConfigurationError(f"client must be a holdfast.Client, or a function that returns one, not {client!r}")
    mutexes: dict[int, Mutex] = {}
    of_process: dict[int, Made] = {}

    def get() -> Made:
        pid = os.getpid()
        with mutex_of_process(mutexes):
            if pid not in of_process:
                opened = client()
                if not isinstance(opened, Client):
                    raise ConfigurationError(f"{client!r} must return a holdfast.Client, not {opened!r}")
                of_process[pid] = make(opened)
        return of_process[pid]

    return get


# ── the end of a body whose lease is lost ────────────────────────────────────────────────────────────────────────
#
# Only the main thread of a process can be interrupted inside a system call: by a signal whose handler raises. A thread
# of the client sends it when the lease is lost. The handler raises only in code of the body, never in code of holdfast
# that the body has called, so the signal is repeated until the body has ended or is interrupted.

_SIGNAL = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else None  # no program and no library is known to use it
_REPEAT = 0.05  # seconds


class _Body:
    """A body that runs in the main thread."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.is_over = False  # it has ended, or was interrupted


_bodies: list[_Body] = []  # the innermost one last


def _interruptible(call: Callable[..., T], lease: Lease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Call the body so that a loss of the lease interrupts it, where that is possible."""
    if not _can_interrupt():
        return call(lease, args, kwargs)
    body = _Body(lease)
    _bodies.append(body)
    try:
        lease.check()  # a loss before this line finds no body
        return call(lease, args, kwargs)
    finally:
        body.is_over = True
        _bodies.remove(body)


def _can_interrupt() -> bool:
    if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(_SIGNAL) == signal.SIG_DFL:
        signal.signal(_SIGNAL, _on_signal)
    return signal.getsignal(_SIGNAL) is _on_signal


def _interrupting(on_lost: Any) -> Callable[[Lease], None]:
    """The function that is called when a lease is lost, on a thread of its own."""

    def interrupt(lease: Lease) -> None:
        if callable(on_lost):
            start_thread(lambda: _interrupt(lease), "interrupt")
            on_lost(lease)
        else:
            _interrupt(lease)

    return interrupt


def _interrupt(lease: Lease) -> None:
    body = next((body for body in _bodies if body.lease is lease), None)
    main = threading.main_thread().ident
    while body is not None and main is not None and _SIGNAL is not None and not body.is_over:
        signal.pthread_kill(main, _SIGNAL)
        time.sleep(_REPEAT)


def _on_signal(_number: int, frame: FrameType | None) -> None:
    for body in _bodies:
        if body.lease.lost and not body.is_over and _is_code_of_user(frame):
            body.is_over = True
            body.lease.check()


def _is_code_of_user(frame: FrameType | None) -> bool:
    """Whether the interrupted frame is code of the user, called by a module of holdfast that calls such functions."""
    interrupted = frame
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("holdfast."):
            return frame is not interrupted and module in _CALLERS
        frame = frame.f_back
    return False


_CALLERS = {__name__, "holdfast.core.decorators", "holdfast.threads.decorators", "holdfast.threads.once"}
