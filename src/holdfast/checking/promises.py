"""What a history is held against: the guarantees of its backend, what its recorder could see, and the tolerances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Which promises the checkers hold a history to, and how exactly. Times are seconds.

    The defaults are strict: the strongest backend, seen from inside by a simulator whose clock is exact.
    """

    # What the backend promises.
    exclusion: Exclusion = Exclusion.DURABLE_AUTHORITY
    fence: FenceOrder = FenceOrder.UNCONDITIONAL
    order: Order = Order.FIFO

    # What the recorder could see.
    sees_server: bool = True  # Queued, Admitted and Left are in the history, all of them, at their true moments
    server_decides: bool = True  # ServerGranted is a grant; on Redlock the client rejects votes of nodes that forgot
    reports_losses: bool = True  # Told is in the history, for every loss of a process that runs

    # How exact its times are.
    clock_error: float = 1e-6  # by how much a deadline on the true clock may be wrong; a stalled machine needs more
    drift: float = 0.0  # a client's clock may run this share too fast: its timeouts end early by as much

    # How soon things have to happen.
    report_max: float = 1.0  # from a deadline to Lost, from Lost to Told, in a process that runs
    late_max: float = 3.0  # from the end of a timeout to the return of the call: the last request and the withdrawal
    answer_max: float = 2.0  # a client that waits hears from its server at least this often, or knows that it does not
    renew_max: float = 3.0  # from the end of all faults until every lease that can be renewed has been
    revoke_max: float = 15.0  # from a request to let go until a lease that listens has heard of it: its next renewal
    settle_max: float = 2.0  # from the end of all faults until every client has found its server again
    wait_max: float = 60.0  # in a healed world, from Asked to the outcome; depends on how long the workload holds
    idle_max: float = 40.0  # in a healed world, how long somebody may wait for a lock that nobody holds
    leftover_max: float = 40.0  # from the end of the last claim until nothing of it is left on the server

    # From the crash of a waiter's process until its ticket has left the queue; None is not judged.
    dead_waiter_max: float | None = None

    # How long a waiter that runs may wait for a lock that no client has; None is not judged.
    grant_max: float | None = None

    # How often a call may be passed by calls that came later; None is not judged. Needs nothing from the server.
    overtaken_max: int | None = None

    @classmethod
    def of(cls, guarantees: Guarantees, *, ttl: float = 30.0, **others: Any) -> Promises:
        """What follows from a backend's guarantees and the ttl of the workload; `others` by their names.

        A holder that dies keeps its place for one ttl, a waiter for less; the rest is slack for asking again.
        """
        bounds = {"idle_max": ttl + 10.0, "leftover_max": ttl + 10.0}
        return cls(exclusion=guarantees.exclusion, fence=guarantees.fence, order=guarantees.order, **(bounds | others))
