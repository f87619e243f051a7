"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

_UNIQUE = Guarantees(
    exclusion=Exclusion.DURABLE_AUTHORITY,
    fence=FenceOrder.CLOCK_BOUNDED,
    order=Order.TURNS,  # FIFO with local_handover=no
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)
GUARANTEES: Mapping[str, Guarantees] = {
    "unique": _UNIQUE,
    "row": _UNIQUE._replace(order=Order.STORE, wake=Wake.PUSH),
    "version": _UNIQUE._replace(order=Order.NONE),
}

_ALONE = "its one row has room for one holder"
_ONE_CONNECTION = "one connection at a time has the row locked"
_VERSION_LACKS: Lacks = {
    Primitive.RWLOCK: _ALONE,
    Primitive.SEMAPHORE: _ALONE,
    Primitive.OWNER: _ALONE,
    Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
}
LACKS: Mapping[str, Lacks] = {
    "unique": {},
    "row": {**_VERSION_LACKS, **dict.fromkeys((Primitive.OWNER, Primitive.TRANSFER), _ONE_CONNECTION)},
    "version": _VERSION_LACKS,
}
