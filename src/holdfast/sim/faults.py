"""All that can go wrong in a simulated world, and how badly. Every run draws its own: which kinds, and how often.

Two dice, as in FoundationDB's simulator: a kind of fault is enabled for a run with the probability `enable`, and then
happens with its own. So runs differ in kind: some only lose replies, some only pause processes, a few do it all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.sim.choices import Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities are per message or, where it says so, per second of the run before it heals. Times are seconds."""

    # Messages. A request or reply takes between `delay_min` and `delay_max`, unless it is slow.
    delay_min: float = 0.0001
    delay_max: float = 0.005
    slow: float = 0.0  # takes up to `slow_max` instead: long enough to come after every deadline
    slow_max: float = 6.0
    lose_request: float = 0.0  # it never arrives
    lose_reply: float = 0.0  # it was done, and nobody hears of it
    duplicate: float = 0.0  # it arrives once more, any time within `slow_max`
    refuse: float = 0.0  # the connection is refused: nothing was sent
    lose_notification: float = 0.0  # a wake-up that never comes

    # Processes, each per second.
    pause: float = 0.0  # stands still for up to `pause_max`
    pause_max: float = 20.0
    crash: float = 0.0  # is gone, and comes back empty within `restart_max`
    restart_max: float = 5.0
    cancel: float = 0.0  # what it waits for is cancelled
    drift: float = 0.0  # its clock runs up to this share fast or slow

    overrun: float = 0.0  # a request of the keeper returns up to `overrun_max` after its deadline: a name look-up, say
    overrun_max: float = 10.0
    no_thread: float = 0.0  # per start: the keeper cannot start a thread
    slow_subscriber: float = 0.0  # per event: the subscribers take up to `slow_subscriber_max`
    slow_subscriber_max: float = 10.0

    # Between process and server, per second.
    cut: float = 0.0  # requests, replies or both do not get through, for up to `cut_max`
    cut_max: float = 20.0
    drop: float = 0.0  # the connection on which it hears wake-ups ends, and it does not know yet
    vanish: float = 0.0  # all connections that are open get no answer any more, without a word; new ones work
    lookup_stall: float = 0.0  # no new connection: the name servers are silent, for up to `lookup_stall_max`
    lookup_stall_max: float = 15.0

    # The server, per second.
    stall: float = 0.0  # answers nothing for up to `stall_max`, then all at once
    stall_max: float = 10.0
    restart: float = 0.0  # goes down and comes back with its data: what was on its way is not done
    lose_data: float = 0.0  # comes back with no data
    old_data: float = 0.0  # comes back with the data of some time ago
    step_clock: float = 0.0  # its wall clock goes back, by up to an hour
    leap_clock: float = 0.0  # its wall clock goes forward, by up to `leap_max`
    leap_max: float = 60.0
    break_lock: float = 0.0  # an operator breaks a lease


CALM = Faults()

# Everything at once, each of it often enough to matter in a run of half a minute.
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
)  # what can be enabled, by name


# Faults of the connections that a pool keeps for requests. Rarer than others, because all requests go over a pool then.
POOLED = frozenset({"vanish", "lookup_stall"})
POOLED_SHARE = 1 / 3  # of the probability of other faults


def only(faults: Faults, kinds: frozenset[str]) -> Faults:
    """The same without all other kinds."""
    return replace(faults, **{kind: 0.0 for kind in KINDS if kind not in kinds})


USUAL = only(ALL, frozenset(KINDS) - POOLED)  # of a plan that names none; a search of `holdfast simulate` has ALL


def draw(faults: Faults, choices: Choices, enable: float = 0.35) -> Faults:
    """Those of one run: each kind is either off, or as probable as it says."""

    def is_chosen(kind: str) -> bool:
        return enable >= 1.0 or choices.chance(enable * POOLED_SHARE if kind in POOLED else enable)

    return only(faults, frozenset(kind for kind in KINDS if getattr(faults, kind) and is_chosen(kind)))


def enabled(faults: Faults) -> list[str]:
    """The kinds that can happen."""
    return [kind for kind in KINDS if getattr(faults, kind)]
