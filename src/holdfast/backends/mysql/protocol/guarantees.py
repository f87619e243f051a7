"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

UNIQUE = Guarantees(
    exclusion=Exclusion.DURABLE_AUTHORITY,
    fence=FenceOrder.CLOCK_BOUNDED,
    order=Order.TURNS,  # FIFO with local_handover=no
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)
ROW = UNIQUE._replace(order=Order.STORE, wake=Wake.PUSH)
VERSION = UNIQUE._replace(order=Order.NONE)

_ALONE = "its one row has room for one holder"
_ONE_CONNECTION = "one connection at a time has the row locked"
UNIQUE_LACKS: Lacks = {}
VERSION_LACKS: Lacks = {
    Primitive.RWLOCK: _ALONE,
    Primitive.SEMAPHORE: _ALONE,
    Primitive.OWNER: _ALONE,
    Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
}
ROW_LACKS: Lacks = {
    **VERSION_LACKS,
    **dict.fromkeys((Primitive.OWNER, Primitive.TRANSFER), _ONE_CONNECTION),
}

GUARANTEES: Mapping[str, Guarantees] = {"unique": UNIQUE, "row": ROW, "version": VERSION}
LACKS: Mapping[str, Lacks] = {"unique": UNIQUE_LACKS, "row": ROW_LACKS, "version": VERSION_LACKS}
