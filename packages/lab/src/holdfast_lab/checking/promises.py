"""Promises that a history is checked against: the guarantees of its backend, and tolerances of its recorder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order

IN_ORDER = (Order.FIFO, Order.TURNS)  # of tickets on the server; with local hand-over, one ticket is for all callers


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The promises that the checkers check, and their tolerances. Times are seconds.

    The defaults are strict: the strongest backend, recorded by a simulator with an exact clock.
    """

    # The guarantees of the backend.
    exclusion: Exclusion = Exclusion.DURABLE_AUTHORITY
    fence: FenceOrder = FenceOrder.UNCONDITIONAL
    order: Order = Order.FIFO

    # The events that the recorder records.
    sees_server: bool = True  # the history has all events of the server, at their true times
    server_decides: bool = True  # ServerGranted is a grant; a Redlock client rejects votes of nodes that lost state
    reports_losses: bool = True  # the history has LossReported for every loss of a running process

    # The accuracy of its times.
    clock_error: float = 1e-6  # error of a deadline on the true clock; a stalled machine needs more
    drift: float = 0.0  # a client's clock may run too fast by this share, so its timeouts end early

    # Time limits.
    subscriber_max: float = 15.0  # from an event to its delivery, in a running process
    report_max: float = 1.0  # from a deadline to Lost, and from Lost to LossReported, in a running process
    late_max: float = 3.0  # from the end of a timeout to the return of the call: the last request and the release
    answer_max: float = 2.0  # a waiting client gets an answer at least this often, or notices the silence of the server
    renew_max: float = 3.0  # from the end of all faults until every lease that can be renewed was renewed
    revoke_max: float = 15.0  # from a revocation request until its lease receives it: the next renewal
    settle_max: float = 2.0  # from the end of all faults until every client reaches its server again
    wait_max: float = 60.0  # in a healed world, from AcquireStarted to the outcome; depends on the workload
    idle_max: float = 40.0  # in a healed world, the longest wait for a lock that no client holds
    leftover_max: float = 40.0  # from the end of the last claim until the server has no ticket of it

    # From the crash of a waiter's process until its ticket is removed from the queue; None: not checked.
    dead_waiter_max: float | None = None

    # The longest wait of a running waiter for a lock that no client has; None: not checked.
    grant_max: float | None = None

    pass_contact_max: float = 0.1  # from the end of a ticket on the server to the last pass of its lease

    # How often later calls may overtake a call; None: not checked. Needs no events of the server.
    overtaken_max: int | None = None

    @classmethod
    def of(cls, guarantees: Guarantees, *, ttl: float = 30.0, **others: Any) -> Promises:
        """The promises of a backend with these guarantees and a workload with this ttl; `others` are other fields.

        A dead holder keeps its lock for one ttl, a dead waiter its ticket for less; the rest is slack for retries.
        """
        bounds = {"idle_max": ttl + 10.0, "leftover_max": ttl + 10.0}
        return cls(exclusion=guarantees.exclusion, fence=guarantees.fence, order=guarantees.order, **(bounds | others))
