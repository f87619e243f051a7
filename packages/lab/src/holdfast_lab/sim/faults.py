"""The faults of a simulated world and their probabilities. Each run draws its own set.

There are two random draws, as in FoundationDB's simulator: a kind of fault is enabled for a run with the probability
`enable`, and then happens with its own probability. So runs differ in kind: some only lose replies, some only pause
processes, a few have all faults.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast_lab.sim.choices import Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities are per message or, where a comment says so, per second until the run heals. Times are seconds."""

    # Messages. A request or reply takes between `delay_min` and `delay_max`, unless it is slow.
    delay_min: float = 0.0001
    delay_max: float = 0.005
    slow: float = 0.0  # takes up to `slow_max` instead: long enough to arrive after every deadline
    slow_max: float = 6.0
    lose_request: float = 0.0  # the request never arrives
    lose_reply: float = 0.0  # the request is done, but its reply never arrives
    duplicate: float = 0.0  # the request arrives a second time, within `slow_max`
    refuse: float = 0.0  # the connection is refused, and nothing is sent
    lose_notification: float = 0.0  # a notification never arrives

    # Processes, each per second.
    pause: float = 0.0  # the process is paused for up to `pause_max`
    pause_max: float = 20.0
    crash: float = 0.0  # the process dies; a new one starts within `restart_max`
    restart_max: float = 5.0
    cancel: float = 0.0  # the call that it waits for is cancelled
    drift: float = 0.0  # the clock is fast or slow by up to this share

    overrun: float = 0.0  # a request of the keeper returns up to `overrun_max` late, because of a name look-up
    overrun_max: float = 10.0
    no_thread: float = 0.0  # per start: the keeper cannot start a thread
    slow_subscriber: float = 0.0  # per event: the subscribers take up to `slow_subscriber_max`
    slow_subscriber_max: float = 10.0

    # Between process and server, per second.
    cut: float = 0.0  # requests, replies or both are lost, for up to `cut_max`
    cut_max: float = 20.0
    drop: float = 0.0  # the connection for notifications ends; the client notices later
    vanish: float = 0.0  # all open connections silently stop answering; new ones work
    lookup_stall: float = 0.0  # no new connections, because name look-ups stall for up to `lookup_stall_max`
    lookup_stall_max: float = 15.0

    # The server, per second.
    stall: float = 0.0  # the server answers no request for up to `stall_max`, then all at once
    stall_max: float = 10.0
    restart: float = 0.0  # the server restarts with its data; requests in flight are not done
    lose_data: float = 0.0  # the server restarts without data
    old_data: float = 0.0  # the server restarts with old data
    step_clock: float = 0.0  # the wall clock is set back, by up to an hour
    leap_clock: float = 0.0  # the wall clock is set forward, by up to `leap_max`
    leap_max: float = 60.0
    break_lock: float = 0.0  # an operator breaks a lease


CALM = Faults()

# All faults, each often enough to matter in a run of half a minute.
ALL = Faults(
    slow=0.05,
    lose_request=0.05,
    lose_reply=0.1,
    duplicate=0.05,
    refuse=0.03,
    lose_notification=0.2,
    pause=0.1,
    crash=0.05,
    cancel=0.2,
    drift=0.009,
    cut=0.05,
    drop=0.1,
    vanish=0.05,
    lookup_stall=0.05,
    stall=0.05,
    restart=0.03,
    lose_data=0.02,
    old_data=0.02,
    step_clock=0.03,
    leap_clock=0.03,
    break_lock=0.03,
    overrun=0.2,
    no_thread=0.2,
    slow_subscriber=0.3,
)

KINDS = tuple(
    field.name for field in fields(Faults) if not field.name.endswith(("_min", "_max"))
)  # the names of all kinds


# Faults of pooled connections. Rarer than others, because all requests use a pool then.
POOLED = frozenset({"vanish", "lookup_stall"})
POOLED_SHARE = 1 / 3  # of the probability of other faults


def only(faults: Faults, kinds: frozenset[str]) -> Faults:
    """These faults, with all kinds except `kinds` disabled."""
    return replace(faults, **{kind: 0.0 for kind in KINDS if kind not in kinds})


USUAL = only(ALL, frozenset(KINDS) - POOLED)  # the default of a plan; `holdfast simulate` uses ALL


def draw(faults: Faults, choices: Choices, enable: float = 0.35) -> Faults:
    """The faults of one run: each kind is either disabled or has its probability."""

    def is_chosen(kind: str) -> bool:
        return enable >= 1.0 or choices.chance(enable * POOLED_SHARE if kind in POOLED else enable)

    return only(faults, frozenset(kind for kind in KINDS if getattr(faults, kind) and is_chosen(kind)))


def enabled(faults: Faults) -> list[str]:
    """The kinds that are enabled."""
    return [kind for kind in KINDS if getattr(faults, kind)]
