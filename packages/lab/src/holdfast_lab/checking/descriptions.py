"""Events in English, for the lines of a report and the tooltips of a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import history as h


def describe(event: h.Event) -> str:
    """The event without its time and client.

    >>> describe(h.Granted(1.5, "web-1", 7, "report", fence=3, deadline=30.5))
    "granted 'report', fence 3, until 30.5 s"
    """
    return _DESCRIPTIONS[type(event)](event)


def subject(event: h.Event) -> str:
    """The client of the event, or `server`, `all` or `world`."""
    if isinstance(event, h.StateLost | h.Leftover):
        return "server"
    return getattr(event, "client", "world") or "all"


def _kind(event: h.AcquireStarted | h.Granted | h.ServerQueued | h.ServerGranted) -> str:
    if event.exclusive:
        return ""
    return " shared" if event.limit is None else f" as one of {event.limit}"


def _acquire_started(event: h.AcquireStarted) -> str:
    if event.adopts is not None:
        return f"adopts the lease of {event.lock!r} with ticket {event.adopts}"
    timeout = "" if event.timeout is None else f", timeout {event.timeout:g} s"
    return f"requested {event.lock!r}{_kind(event)}{timeout}"


def _granted(event: h.Granted) -> str:
    until = "" if event.deadline is None else f", until {event.deadline:g} s"
    return f"granted {event.lock!r}{_kind(event)}, fence {event.fence}{until}"


def _release_started(event: h.ReleaseStarted) -> str:
    if event.within is None:
        return f"released {event.lock!r}"
    return f"transferred {event.lock!r}, ticket {event.ticket}, to be adopted within {event.within:g} s"


def _server_queued(event: h.ServerQueued) -> str:
    position = "" if event.position is None else f", position {event.position}"
    return f"queued for {event.lock!r}{_kind(event)} on the server{position}"


def _state_lost(event: h.StateLost) -> str:
    loss = {
        "data": "lost its data",
        "lease": "ended early the tickets",
        "clock": "had its clock set back",
    }[event.kind]
    where = "" if event.lock is None else f" of {event.lock!r}"
    minority = "" if event.majority else " (a minority of the servers)"
    return f"{loss}{where}{minority}{_because(event.detail)}"


def _leftover(event: h.Leftover) -> str:
    return f"still has {event.client} as {'holder of' if event.granted else 'waiter for'} {event.lock!r}"


def _read(event: h.Read) -> str:
    refused = "" if event.accepted else ", refused"
    return f"read {event.value!r} from {event.lock!r} with fence {event.fence}{refused}"


def _wrote(event: h.Wrote) -> str:
    before = "" if event.before is None else f" over {event.before!r}"
    refused = "" if event.accepted else ", refused"
    unchecked = "" if event.fenced else ", unchecked"
    return f"wrote {event.value!r}{before} to {event.lock!r} with fence {event.fence}{refused}{unchecked}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    h.AcquireStarted: _acquire_started,
    h.Granted: _granted,
    h.TurnBegan: lambda event: f"got {event.lock!r} while {event.waiting} of its calls waited for it",
    h.TurnExtended: lambda event: f"reserved {event.fences} fences of {event.lock!r}",
    h.Passed: lambda event: f"passed {event.lock!r} on from ticket {event.giver}, fence {event.fence}",
    h.TakenOver: lambda event: f"took over ticket {event.giver} of {event.lock!r}",
    h.MemberGranted: lambda event: f"has {event.lock!r}, fence {event.fence}, and requests the next of its group",
    h.Reentered: lambda event: f"re-entered {event.lock!r}, fence {event.fence}",
    h.AcquireFailed: lambda event: f"gave up {event.lock!r}: {event.outcome}{_because(event.reason)}",
    h.Renewed: lambda event: f"renewed {event.lock!r} until {event.deadline:g} s",
    h.Checked: lambda event: f"checked its lease of {event.lock!r}: {'held' if event.held else 'not held'}",
    h.ReleaseStarted: _release_started,
    h.ReleaseEnded: lambda event: f"end of the release of {event.lock!r}: {event.outcome}",
    h.Lost: lambda event: f"lost {event.lock!r}{_because(event.reason)}",
    h.LossReported: lambda event: f"the loss of {event.lock!r} was reported",
    h.Delivered: lambda event: f"a subscriber received {event.kind!r} for {event.lock!r}, attempt {event.attempt}",
    h.Elected: lambda event: f"leads {event.lock!r}, term {event.term}",
    h.ClaimStarted: lambda event: f"claims the run of {event.lock!r} in period {event.number}",
    h.ClaimEnded: lambda event: f"the run of {event.lock!r} in period {event.number}: {event.outcome}",
    h.OnceCalled: lambda event: f"calls once for the key {event.lock!r}",
    h.RunStarted: lambda event: f"runs the body of the key {event.lock!r}, fence {event.fence}",
    h.RunEnded: lambda event: f"the body of the key {event.lock!r} {event.outcome}",
    h.OnceEnded: lambda event: f"the call for the key {event.lock!r}: {event.outcome}",
    h.RevokeStarted: lambda event: f"requests the revocation of {event.lock!r}, fence {event.fence}",
    h.RevokeEnded: lambda event: f"the server has the revocation request for {event.lock!r}, fence {event.fence}",
    h.RevokeReceived: lambda event: f"received a revocation request for {event.lock!r}",
    h.ServerQueued: _server_queued,
    h.ServerGranted: lambda event: f"granted {event.lock!r}{_kind(event)} on the server, fence {event.fence}",
    h.ServerRemoved: lambda event: f"removed from {event.lock!r} on the server{_because(event.reason)}",
    h.StateLost: _state_lost,
    h.Leftover: _leftover,
    h.Read: _read,
    h.Wrote: _wrote,
    h.Paused: lambda _: "paused",
    h.Resumed: lambda _: "resumed",
    h.Crashed: lambda event: f"crashed{_because(event.reason)}",
    h.Restarted: lambda _: "restarted",
    h.Unreachable: lambda _: "cannot reach the server",
    h.Reachable: lambda _: "reaches the server again",
    h.FaultStarted: lambda event: f"fault: {event.name}{_because(event.detail)}",
    h.FaultEnded: lambda event: f"over: {event.name}{_because(event.detail)}",
    h.Healed: lambda _: "healed",
    h.End: lambda _: "end",
}
