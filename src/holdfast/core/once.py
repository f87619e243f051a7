"""`once`: of all calls with one key, on all machines, one runs the body, and the others get its result.

A record of the key decides, by compare-and-set alone. The lock of the key prevents useless work of concurrent callers,
and shows whether the run of a record is alive. So at most one run starts for a record, even if the lock fails.

    no record   -> running       before the body, by a caller that holds the lock
    running     -> done          the body has returned; kept for `retention`
    running     -> failed        it has raised, with after_error="remember"; kept for `retention`
    running     -> no record     it has raised, with after_error="retry"; or it was not started. If a request to write
                                 the running record got no answer, that request may still arrive. Then a record
                                 `withdrawn` is written, which counts as no record, and which the late request does
                                 not replace
    running     -> running       that run does not hold the lock any more, so it was interrupted. With
                                 after_crash="retry" a caller that holds the lock replaces the record, with a greater
                                 fence

Each record has its own nonce. A run completes or removes only the record with its own nonce, so a run that was replaced
or forgotten changes nothing. A run that lost its lease may complete its record: as long as the record has its nonce, no
other run has started.

A request without an answer is repeated with the same nonce, so it is the same request. A running record is kept for
`max_hold`, the ttl and `retention`, so its lease ends before the record does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, cast

from holdfast.core import names
from holdfast.core.engine import OUTAGE_PAUSE_MAX, OUTAGE_PAUSE_MIN
from holdfast.core.events import pattern_of
from holdfast.core.locks import UNSET, LockOptions, Unset, make_call_spec
from holdfast.core.ports import KeepsRecords, Record
from holdfast.core.tickets import may_have_happened
from holdfast.errors import (
    AccessDenied,
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    LockLost,
    NameConflict,
    OnceFailed,
    OnceInterrupted,
    OnceMismatch,
    OutcomeUnknown,
    Unsupported,
)

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.leases import BaseLease, LockSpec, OnLost
    from holdfast.core.names import Duration

V = TypeVar("V")

RESULT_MAX = 64 * 1024  # bytes of a result as JSON
MAX_HOLD = 7 * 86400.0  # seconds, unless given
WITHDRAWN_KEPT = 60.0  # seconds after which a request without an answer does not arrive any more
ERROR_MAX = 1000  # characters of an error that are remembered
KEY_MAX = names.NAME_MAX - len(names.ONCE_PREFIX)

_CHOICES = {
    "busy": ("wait", "skip", "raise"),
    "after_error": ("retry", "remember"),
    "after_crash": ("raise", "retry", "skip"),
}
_LOCK_OPTIONS = ("ttl", "timeout", "max_hold", "stop_margin", "meta", "on_lost", "group")

State = Literal["running", "interrupted", "done", "failed"]
_WITHDRAWN = "withdrawn"


class OnceOptions(TypedDict, total=False):
    """The options of once(). Durations: seconds, a timedelta, or "30s", "15m", "1h"."""

    retention: Duration
    result: bool
    check: str | None
    busy: Literal["wait", "skip", "raise"]
    after_error: Literal["retry", "remember"]
    after_crash: Literal["raise", "retry", "skip"]
    lease: str | None
    ttl: Duration | None
    timeout: Duration | None
    max_hold: Duration | None
    stop_margin: Duration
    meta: Mapping[str, Any] | None
    on_lost: OnLost
    group: str | None


class Outcome(NamedTuple, Generic[V]):
    """The result of `once(…).run(…)`."""

    ran: bool  # this call has run the body
    value: V  # its result, the remembered one, or `skipped`
    fence: int | None  # of the run that the record describes; None if there is no record
    at: float | None  # Unix time at which that run was complete; None if it is not


class OnceInfo(NamedTuple):
    """The record of a key, for operators."""

    key: str
    state: State  # interrupted: running, and its run does not hold the lock any more
    fence: int
    host: str
    pid: int
    since: float  # Unix time of the start
    at: float | None  # Unix time of the end; None while it runs
    value: Any  # the remembered result; None without one
    error: str  # of a failed run


class OncePlan(NamedTuple):
    """The arguments of `once`, checked."""

    key: str
    spec: LockSpec  # of the lock, without its name
    timeout: float | None
    retention: float
    result: bool
    check: str | None
    skipped: Any
    busy: str
    after_error: str
    after_crash: str
    lease: str | None  # the parameter that is filled in with the lease

    @property
    def running_kept(self) -> float:
        """Seconds for which a running record is kept."""
        return (self.spec.max_hold or 0.0) + self.spec.ttl + self.retention


def make_once_plan(key: object, *, ttl: float, options: Mapping[str, Any]) -> OncePlan:
    """Check the arguments of `once`.

    Raises:
        ConfigurationError: names the argument and the fix.
    """
    names.refuse_unknown("once", options, (*OnceOptions.__annotations__, "skipped"))
    values = {"busy": "wait", "after_error": "retry", "after_crash": "raise", **options}
    for argument, known in _CHOICES.items():
        if values[argument] not in known:
            known_text = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
            raise ConfigurationError(f"{argument} must be {known_text}, not {values[argument]!r}")
    retention = names.check_duration("retention", values.get("retention", "1d"))
    if not names.TTL_MIN <= retention <= names.TTL_MAX:
        raise ConfigurationError(
            f"retention must be between {names.TTL_MIN} s and 366 days, not {names.shown(options['retention'])}: "
            "it is how long a completed run is remembered"
        )
    check, lease = values.get("check"), values.get("lease")
    if check is not None and not isinstance(check, str):
        raise ConfigurationError(f"check must be text that calls with the same key agree on, not {names.shown(check)}")
    if lease is not None and not isinstance(lease, str):
        raise ConfigurationError(f"lease must be the name of a parameter, or None, not {lease!r}")
    lock_options = cast("LockOptions", {option: values[option] for option in _LOCK_OPTIONS if option in options})
    spec, timeout = make_call_spec("once", values["busy"], ttl=ttl, options=lock_options)
    if spec.max_hold is None:
        spec = spec._replace(max_hold=MAX_HOLD)
    elif spec.max_hold > names.TTL_MAX:
        raise ConfigurationError(f"max_hold must be at most 366 days for once(), not {values['max_hold']!r}")
    skipped = values.get("skipped", UNSET)
    return OncePlan(
        key=check_key(key),
        spec=spec,
        timeout=timeout,
        retention=retention,
        result=names.check_flag("result", values.get("result", False)),
        check=check,
        skipped=None if isinstance(skipped, Unset) else skipped,
        busy=values["busy"],
        after_error=values["after_error"],
        after_crash=values["after_crash"],
        lease=lease,
    )


def check_key(key: object) -> str:
    """The key of `once`: as the name of a lock, and shorter, because the name of its lock has a prefix."""
    checked = names.check_name(key, "key")
    if len(checked) > KEY_MAX:
        raise ConfigurationError(
            f"key has {len(checked)} characters, at most {KEY_MAX} are allowed: use a digest of the long part"
        )
    return checked


class BaseOnce:
    """A key: the part of Once and AsyncOnce that sends no request."""

    def __init__(self, client: Callable[[], Any], plan: OncePlan) -> None:
        self._client = client
        self._plan = plan

    @property
    def key(self) -> str:
        """The key, or its template."""
        return self._plan.key

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"


class OnceCall:
    """One call with a key. The shell acquires the lock and calls the body between `start` and `complete`.

    look()          sets the outcome without the lock, if there is one
    start(lease)    the lock is acquired: sets the outcome; if it stays None, the body is to run
    complete(lease, value) | body_raised(lease, error) | withdraw() if the body was not started
    """

    outcome: Outcome[Any] | None = None

    def __init__(self, engine: Engine[Any], plan: OncePlan, key: str, check: str | None, group: str = "") -> None:
        self._engine = engine
        self._plan = plan
        self._key = key
        self._check = _digest(check)
        self._nonce = engine.runtime.nonce()  # of the running record
        self._process_id = engine.runtime.process_id()
        self._started: dict[str, Any] = {}  # the payload of the running record
        self._seen: _Run | None = None
        self._may_arrive = False  # a request to write the running record got no answer
        self.spec = plan.spec._replace(
            name=names.ONCE_PREFIX + key, group=plan.spec.group or group or pattern_of(key)[: names.GROUP_MAX]
        )

    async def look(self) -> None:
        """Set the outcome if a run has ended before, so that the caller need not acquire the lock.

        Raises:
            OnceFailed, OnceMismatch: see `start`.
            BackendError: no answer.
        """
        self._seen = await read_run(self._engine, self._key)
        if self._seen is not None:
            self.outcome = self._outcome_of(self._seen)

    def busy(self, error: AcquireTimeout) -> Outcome[Any]:
        """The lock was not acquired in time."""
        self._engine.skipped(self.spec, "busy")
        if self._plan.busy != "skip":
            raise error
        return Outcome(ran=False, value=self._plan.skipped, fence=self._seen and self._seen.info.fence, at=None)

    async def start(self, lease: BaseLease) -> None:
        """Write the running record under the lock, or set the outcome.

        Raises:
            OnceFailed: an earlier run has failed, and is remembered; or it has no result that can be returned.
            OnceInterrupted: the run of the record does not hold the lock any more, and after_crash is "raise".
            OnceMismatch: the record belongs to another `check`.
            LockLost: the lease has ended; the body is not started.
            OutcomeUnknown: no answer. The body is not started; a record that was written in spite of that is removed,
                or later calls take this run for an interrupted one.
        """
        try:
            await self._start(lease)
        except BaseException as error:
            self._may_arrive |= may_have_happened(error)
            if self._may_arrive or isinstance(error, LockLost):
                await self.withdraw()
            raise

    async def complete(self, lease: BaseLease, value: Any) -> None:
        """Record that the body has returned this value, and set the outcome.

        Raises:
            ConfigurationError: with `result`, the value is not JSON of at most RESULT_MAX bytes. The run is recorded
                as done, without its result.
            LockLost: another run has replaced the record, or it was forgotten or has expired.
            OutcomeUnknown: no answer. The record says running, so later calls take this run for an interrupted one;
                or it says done.
        """
        self._check_process(lease)
        runtime = self._engine.runtime
        at, result, problem = runtime.wall(), "", ""
        if self._plan.result:
            try:
                result = _result_json(value)
            except Exception as error:
                problem = f"the result cannot be remembered: {type(error).__name__}: {_text(error)}"[:ERROR_MAX]
        payload = _json({**self._started, "state": "done", "at": at, "problem": problem})
        done = Record(runtime.nonce(), f'{payload[:-1]},"value":{result}}}' if result else payload)
        try:
            current = await self._swap(self._nonce, done, self._plan.retention, self.spec.ttl)
        except BackendError as error:
            unknown = "the body has run, but that is not recorded, as far as is known: later calls may report an "
            raise OutcomeUnknown(
                backend=self._engine.backend.url, problem=f"once {self._key!r}: {unknown}interruption ({error})"
            ) from error
        if current is None or current.nonce != done.nonce:
            reason = "the body has run, but another run has replaced its record, or it was forgotten or has expired"
            raise LockLost(lock=self.spec.name, fence=lease.fence, reason=reason)
        if problem:
            raise ConfigurationError(
                f"once {self._key!r}: {problem}. The run is recorded as done. Return JSON data of at most "
                f"{RESULT_MAX // 1024} KiB, or leave out result=True"
            )
        self.outcome = Outcome(ran=True, value=value, fence=lease.fence, at=at)

    async def body_raised(self, lease: BaseLease, error: BaseException) -> None:
        """The body has ended with this error, which the caller raises. Raises nothing itself.

        A cancellation or an interrupt of the body is an error as any other. But if the lease was lost, and the body
        ended for this reason, the run is interrupted, and its record stays.
        """
        try:
            self._check_process(lease)
            if lease.lost and (isinstance(error, LockLost) or not isinstance(error, Exception)):
                return
            patience = self.spec.ttl if isinstance(error, Exception) else 0.0
            if self._plan.after_error == "retry":
                await self._remove(patience)
                return
            runtime = self._engine.runtime
            text = f"{type(error).__name__}: {_text(error)}"[:ERROR_MAX]
            fields = {**self._started, "state": "failed", "at": runtime.wall(), "error": text}
            await self._swap(self._nonce, Record(runtime.nonce(), _json(fields)), self._plan.retention, patience)
        except (BackendError, LockLost) as also:
            error.add_note(f"holdfast: later calls of once {self._key!r} may report an interruption: {also}")

    async def withdraw(self) -> None:
        """Remove the running record, because the body was not started. Raises nothing."""
        with suppress(BackendError):  # then later calls take this run for an interrupted one, which is safe
            await self._remove()

    async def _remove(self, patience: float = 0.0) -> None:
        """Remove the running record, and make sure that no request that arrives late writes it again."""
        if not self._may_arrive:
            await self._swap(self._nonce, None, 0.0, patience)
            return
        withdrawn, expected = Record(self._engine.runtime.nonce(), _json({"state": _WITHDRAWN})), self._nonce
        while True:
            current = await self._swap(expected, withdrawn, WITHDRAWN_KEPT, patience)
            if current is not None and current.nonce != self._nonce:
                return  # `withdrawn` is written, or another run has begun
            expected = "" if current is None else self._nonce

    async def _start(self, lease: BaseLease) -> None:
        mine, expected = self._running(lease), ""
        while True:
            lease.check()
            current = await self._swap(expected, mine, self._plan.running_kept)
            if current is None:  # it has expired or was removed since the last answer
                expected = ""
            elif current.nonce == mine.nonce:
                lease.check()
                self._engine.started(lease)
                return
            elif (run := _Run.of(self._key, current)) is None:
                expected = current.nonce
            else:
                self.outcome = self._outcome_of(run)
                if self.outcome is None:
                    lease.check()  # only while this call holds the lock, the other run does not
                    self.outcome = self._outcome_of_interrupted(run.info, lease)
                if self.outcome is not None:
                    return
                expected = current.nonce

    def _running(self, lease: BaseLease) -> Record:
        import json

        process = json.loads(self._engine.runtime.process_info())
        self._started = {
            "state": "running",
            "fence": lease.fence,
            "host": process.get("host", "?"),
            "pid": process.get("pid", 0),
            "since": self._engine.runtime.wall(),
            "check": self._check,
        }
        return Record(self._nonce, _json(self._started))

    def _outcome_of(self, run: _Run) -> Outcome[Any] | None:
        """The outcome of the call if the key has this record; None for a running one."""
        info = run.info
        if self._check and run.check and self._check != run.check:
            self._engine.skipped(self.spec, "mismatch")
            raise OnceMismatch(key=self._key, fence=info.fence)
        if info.state == "running":
            return None
        if info.state == "failed":
            self._engine.skipped(self.spec, "failed")
            raise OnceFailed(key=self._key, fence=info.fence, error=info.error)
        if self._plan.result and not run.has_value:
            self._engine.skipped(self.spec, "failed")
            raise OnceFailed(key=self._key, fence=info.fence, error=info.error or "it was recorded without its result")
        self._engine.skipped(self.spec, "done")
        value = info.value if self._plan.result else self._plan.skipped
        return Outcome(ran=False, value=value, fence=info.fence, at=info.at)

    def _outcome_of_interrupted(self, run: OnceInfo, lease: BaseLease) -> Outcome[Any] | None:
        """The outcome for a running record, while this call holds the lock; None if this call replaces the record."""
        # A store whose fences went back cannot give the greater fence that a repeated run has.
        if self._plan.after_crash == "retry" and run.fence < lease.fence:
            return None
        self._engine.skipped(self.spec, "interrupted")
        if self._plan.after_crash == "skip":
            return Outcome(ran=False, value=self._plan.skipped, fence=run.fence, at=None)
        raise OnceInterrupted(key=self._key, fence=run.fence, host=run.host, pid=run.pid, since=run.since)

    def _check_process(self, lease: BaseLease) -> None:
        """Raise LockLost in a forked child of the body: the record belongs to the run of the parent."""
        if self._engine.runtime.process_id() != self._process_id:
            reason = "this process is a fork: the run belongs to its parent"
            raise LockLost(lock=self.spec.name, fence=lease.fence, reason=reason)

    async def _swap(self, expected: str, record: Record | None, keep: float, patience: float = 0.0) -> Record | None:
        unanswered: list[BackendError] = []
        try:
            return await swap(self._engine, self._key, expected, record, keep, patience, unanswered)
        finally:
            self._may_arrive |= bool(unanswered) and record is not None and record.nonce == self._nonce


async def swap(  # noqa: PLR0917
    engine: Engine[Any],
    key: str,
    expected: str,
    record: Record | None,
    keep: float,
    patience: float = 0.0,
    unanswered: list[BackendError] | None = None,
) -> Record | None:
    """Send the request; repeat it at least once if it may have been executed, and for `patience` seconds in any case.

    The error of an attempt that may have been executed, or may still be, is appended to `unanswered`.

    Raises:
        OutcomeUnknown: an attempt may have been executed.
        BackendUnavailable: none was.
    """
    records, runtime = _records_of(engine), engine.runtime
    until, pause = runtime.now() + patience, OUTAGE_PAUSE_MIN
    unknown: BackendError | None = None
    is_repeat = False
    while True:
        try:
            return await records.swap_record(key, expected, record, keep=keep, deadline=engine.request_deadline())
        except BackendError as error:
            if unknown is None and may_have_happened(error):
                unknown = error
                if unanswered is not None:
                    unanswered.append(error)
            is_over = runtime.now() >= until and (is_repeat or unknown is None)
            if is_over or isinstance(error, AccessDenied):
                if unknown is None or unknown is error:
                    raise
                raise unknown from error
        if is_repeat:
            await runtime.sleep(pause)
            pause = min(2 * pause, OUTAGE_PAUSE_MAX)
        is_repeat = True


async def read_run(engine: Engine[Any], key: str) -> _Run | None:
    """The record of a key; None without one. Does not create the store."""
    request = _records_of(engine).swap_record(key, "", None, keep=0.0, deadline=engine.request_deadline())
    record = await engine.operators.unless_missing(request, None)
    return None if record is None else _Run.of(key, record)


async def inspect_once(engine: Engine[Any], key: str) -> OnceInfo | None:
    """The record of a key for operators; None without one."""
    run = await read_run(engine, key)
    while run is not None and run.info.state == "running":
        lock = await engine.operators.inspect(names.ONCE_PREFIX + key)
        if any(holder.fence == run.info.fence for holder in lock.holders):
            return run.info
        again = await read_run(engine, key)
        if again is not None and again.nonce == run.nonce:  # otherwise the run has ended between the two requests
            return run.info._replace(state="interrupted")
        run = again
    return None if run is None else run.info


async def forget(engine: Engine[Any], key: str, fence: int) -> bool:
    """Remove the record of the run with this fence. Returns whether there was one."""
    run = await read_run(engine, key)
    while run is not None and run.info.fence == fence:
        current = await swap(engine, key, run.nonce, None, 0.0)
        if current is None:
            return True
        run = _Run.of(key, current)  # the run was completed in the meantime
    return False


class _Run(NamedTuple):
    """A record that was read and parsed."""

    nonce: str
    info: OnceInfo  # with the state in the record: running, done or failed
    check: str
    has_value: bool  # also if the remembered result is None

    @classmethod
    def of(cls, key: str, record: Record) -> _Run | None:
        """Parse a record; None for a withdrawn one."""
        import json

        try:
            fields = json.loads(record.payload)
            state = fields["state"]
            if state == _WITHDRAWN:
                return None
            if state not in ("running", "done", "failed"):
                raise ValueError(state)
            info = OnceInfo(
                key,
                state,
                int(fields["fence"]),
                str(fields["host"]),
                int(fields["pid"]),
                float(fields["since"]),
                None if state == "running" else float(fields["at"]),
                fields.get("value"),
                str(fields.get("error") or fields.get("problem") or ""),
            )
            return cls(record.nonce, info, str(fields["check"]), "value" in fields)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NameConflict(lock=key, reason="its record was not written by this version of `once`") from error


def _records_of(engine: Engine[Any]) -> KeepsRecords:
    backend = engine.backend
    if not isinstance(backend, KeepsRecords):
        raise Unsupported(backend=backend.url, what="once (it keeps no records)")
    return backend


def _digest(check: str | None) -> str:
    """The part of `check` that is stored, so that the record does not show it; empty without one."""
    if check is None:
        return ""
    from hashlib import blake2b

    return blake2b(check.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _result_json(value: Any) -> str:
    text = _json(value)  # ASCII
    if len(text) > RESULT_MAX:
        raise ValueError(f"it has {len(text)} bytes as JSON, at most {RESULT_MAX} are allowed")
    return text


def _json(value: Any) -> str:
    import json

    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "?"
