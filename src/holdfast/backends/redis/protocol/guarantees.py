"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

_SETNX = Guarantees(
    exclusion=Exclusion.BEST_EFFORT,
    fence=FenceOrder.BEST_EFFORT,  # nothing but the clock
    order=Order.NONE,
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)

_GETSET = Guarantees(
    exclusion=Exclusion.BEST_EFFORT,
    fence=FenceOrder.BEST_EFFORT,
    order=Order.NONE,
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)

GUARANTEES = {
    "queue": Guarantees(
        # What the server was told last may be lost with it, or by a failover. The fence then tells old from new.
        exclusion=Exclusion.BEST_EFFORT,
        fence=FenceOrder.CLOCK_BOUNDED,
        order=Order.FIFO,
        wake=Wake.PUSH,
        scope=Scope.NETWORK,
    ),
    "setnx": _SETNX,
    "getset": _GETSET,
}

_ALONE = "its one key has room for one holder"
_PLAIN_LACKS: Lacks = {Primitive.RWLOCK: _ALONE, Primitive.SEMAPHORE: _ALONE, Primitive.OWNER: _ALONE}
_GETSET_LACKS: Lacks = {
    **_PLAIN_LACKS,
    Primitive.LOCK_DELAY: "who comes too late for a lease that has run out may overwrite its successor's end",
}
LACKS: Mapping[str, Lacks] = {"queue": {}, "setnx": _PLAIN_LACKS, "getset": _GETSET_LACKS}
