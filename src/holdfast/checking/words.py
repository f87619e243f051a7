"""Events as people say them: for the lines of a report and the tooltips of a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import history as h


def in_words(event: h.Event) -> str:
    """What happened, without when and to whom.

    >>> in_words(h.Granted(1.5, "web-1", 7, "report", fence=3, deadline=30.5))
    "granted 'report', fence 3, until 30.5 s"
    """
    return _WORDS[type(event)](event)


def who(event: h.Event) -> str:
    """The client it happened to, or `server`, or `world`."""
    if isinstance(event, h.StateLost | h.Leftover):
        return "server"
    return getattr(event, "client", "world") or "all"


def _kind(event: h.AcquireStarted | h.Granted | h.ServerQueued | h.ServerGranted) -> str:
    if event.exclusive:
        return ""
    return " shared" if event.limit is None else f" as one of {event.limit}"


def _asked(event: h.AcquireStarted) -> str:
    timeout = "" if event.timeout is None else f", timeout {event.timeout:g} s"
    return f"asked for {event.lock!r}{_kind(event)}{timeout}"


def _granted(event: h.Granted) -> str:
    until = "" if event.deadline is None else f", until {event.deadline:g} s"
    return f"granted {event.lock!r}{_kind(event)}, fence {event.fence}{until}"


def _queued(event: h.ServerQueued) -> str:
    position = "" if event.position is None else f", place {event.position}"
    return f"in line for {event.lock!r}{_kind(event)} on the server{position}"


def _forgot(event: h.StateLost) -> str:
    what = {
        "data": "lost its data",
        "lease": "let go early of the tickets",
        "clock": "had its clock set back",
    }[event.what]
    where = "" if event.lock is None else f" of {event.lock!r}"
    minority = "" if event.majority else " (a minority of the servers)"
    return f"{what}{where}{minority}{_because(event.detail)}"


def _remained(event: h.Leftover) -> str:
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


_WORDS: dict[type, Callable[[Any], str]] = {
    h.AcquireStarted: _asked,
    h.Granted: _granted,
    h.MemberGranted: lambda event: f"has {event.lock!r}, fence {event.fence}, and goes on to the next of several",
    h.Reentered: lambda event: f"re-entered {event.lock!r}, fence {event.fence}",
    h.AcquireFailed: lambda event: f"gave up {event.lock!r}: {event.outcome}{_because(event.reason)}",
    h.Renewed: lambda event: f"renewed {event.lock!r} until {event.deadline:g} s",
    h.Checked: lambda event: f"looked at its lease of {event.lock!r}: {'held' if event.held else 'not held'}",
    h.ReleaseStarted: lambda event: f"released {event.lock!r}",
    h.ReleaseEnded: lambda event: f"end of the release of {event.lock!r}: {event.outcome}",
    h.Lost: lambda event: f"lost {event.lock!r}{_because(event.reason)}",
    h.LossReported: lambda event: f"told that {event.lock!r} is lost",
    h.Elected: lambda event: f"leads {event.lock!r}, term {event.term}",
    h.ClaimStarted: lambda event: f"claims the run of {event.lock!r} in period {event.number}",
    h.ClaimEnded: lambda event: f"the run of {event.lock!r} in period {event.number}: {event.outcome}",
    h.RevokeStarted: lambda event: f"asks fence {event.fence} of {event.lock!r} to let go",
    h.RevokeEnded: lambda event: f"the server knows that fence {event.fence} of {event.lock!r} is asked to let go",
    h.RevokeReceived: lambda event: f"told that somebody asks for {event.lock!r}",
    h.ServerQueued: _queued,
    h.ServerGranted: lambda event: f"let into {event.lock!r}{_kind(event)} by the server, fence {event.fence}",
    h.ServerRemoved: lambda event: f"out of {event.lock!r} on the server{_because(event.reason)}",
    h.StateLost: _forgot,
    h.Leftover: _remained,
    h.Read: _read,
    h.Wrote: _wrote,
    h.Paused: lambda _: "paused",
    h.Resumed: lambda _: "resumed",
    h.Crashed: lambda event: f"crashed{_because(event.reason)}",
    h.Restarted: lambda _: "restarted",
    h.Unreachable: lambda _: "cut off from the server",
    h.Reachable: lambda _: "reaches the server again",
    h.FaultStarted: lambda event: f"fault: {event.name}{_because(event.detail)}",
    h.FaultEnded: lambda event: f"over: {event.name}{_because(event.detail)}",
    h.Healed: lambda _: "healed for good",
    h.End: lambda _: "the end",
}
