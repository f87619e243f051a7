"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

_QUEUE = Guarantees(
    exclusion=Exclusion.DURABLE_AUTHORITY,
    fence=FenceOrder.CLOCK_BOUNDED,
    order=Order.TURNS,  # FIFO with local_handover=no
    wake=Wake.PUSH,
    scope=Scope.NETWORK,
)
GUARANTEES = {"queue": _QUEUE, "advisory": _QUEUE._replace(order=Order.STORE)}

_ALONE = "an advisory lock has one holder at a time"
LACKS: Mapping[str, Lacks] = {
    "queue": {},
    "advisory": {
        **dict.fromkeys((Primitive.RWLOCK, Primitive.SEMAPHORE, Primitive.OWNER), _ALONE),
        Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
        Primitive.TRANSFER: "the advisory lock belongs to a connection of the process that acquired it",
    },
}
