"""Calls of `once` in the simulator: the real protocol, with a shell that records what it does.

It uses the shell for threads: a cancellation can interrupt every step, as a KeyboardInterrupt can.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.core.once import OnceCall, make_once_plan
from holdfast.errors import (
    AcquireTimeout,
    BackendUnavailable,
    HoldfastError,
    LockLost,
    OnceFailed,
    OnceInterrupted,
    OutcomeUnknown,
)
from holdfast_lab.checking import history as h
from holdfast_lab.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast_lab.sim.client import SimClient, SimLease

RETENTION = "300d"  # longer than every jump of a clock
# A key names its options, so that all its calls agree on them. Clients use a key for a while, and then the next one.
KINDS = [f"{crash} {error}" for crash in ("raise", "retry", "skip") for error in ("retry", "remember")]
KEY_USED_FOR = 8.0  # seconds


def key_at(kind: str, now: float) -> str:
    """The key of this kind that clients use now."""
    return f"{kind} {int(now / KEY_USED_FOR)}"


class BodyFailed(Exception):
    """Raised by a body."""


async def run_once(
    client: SimClient, key: str, body: Callable[[SimLease], Awaitable[None]], *, ttl: float, timeout: float | None
) -> None:
    """One call for a key, as the two real shells make it. The value that it returns is its ticket."""
    ticket = client.new_call()
    after_crash, after_error, _ = key.split()
    client.add(h.OnceCalled, ticket, key, after_crash == "retry", after_error == "retry")
    options: dict[str, Any] = {"after_crash": after_crash, "after_error": after_error, "timeout": timeout, "ttl": ttl}
    plan = make_once_plan(key, ttl=ttl, options={**options, "result": True, "retention": RETENTION})
    call = client.once_call_type(client.engine, plan, key, None)
    outcome: h.OnceOutcome = "error"
    try:
        await _run(client, call, key, ticket, body, timeout)
        outcome = "skipped" if call.outcome is None or call.outcome.value is None else "done"
        if call.outcome is not None and call.outcome.ran:
            outcome = "ran"
    except BaseException as error:
        outcome = _outcome_of(error)
        raise
    finally:
        value = call.outcome.value if call.outcome is not None and outcome in ("ran", "done") else None
        client.add(h.OnceEnded, ticket, key, outcome, value)


async def _run(  # noqa: PLR0917
    client: SimClient,
    call: OnceCall,
    key: str,
    ticket: int,
    body: Callable[[SimLease], Awaitable[None]],
    timeout: float | None,
) -> None:
    await call.look()
    if call.outcome is not None:
        return
    lease = await client.acquire_for_once(call, timeout)
    if lease is None:
        call.busy(AcquireTimeout(lock=call.spec.name, waited=timeout or 0.0))
        return
    try:
        await call.start(lease)
        if call.outcome is None:
            granted = getattr(lease, "call", None)
            client.add(h.RunStarted, ticket, key, lease.fence, granted)
            try:
                await body(lease)
            except BaseException as error:
                client.add(h.RunEnded, ticket, key, "raised")
                await call.body_raised(lease, error)
                raise
            client.add(h.RunEnded, ticket, key, "returned")
            await call.complete(lease, ticket)
    except BaseException as error:
        try:
            await client.release(lease)
        except HoldfastError as also:
            error.add_note(str(also))
        raise
    try:
        await client.release(lease)
    except LockLost:
        if call.outcome is None:
            raise


def _outcome_of(error: BaseException) -> h.OnceOutcome:
    kinds: dict[type[BaseException], h.OnceOutcome] = {
        OnceInterrupted: "interrupted",
        OnceFailed: "failed",
        BodyFailed: "raised",
        LockLost: "lost",
        AcquireTimeout: "busy",
        BackendUnavailable: "unavailable",
        OutcomeUnknown: "unknown",
        Cancelled: "cancelled",
    }
    return next((outcome for kind, outcome in kinds.items() if isinstance(error, kind)), "error")
