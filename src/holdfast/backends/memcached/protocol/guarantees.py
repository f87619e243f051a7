"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

GUARANTEES = Guarantees(
    exclusion=Exclusion.CACHE,
    fence=FenceOrder.BEST_EFFORT,
    order=Order.NONE,
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)

_ALONE = "an item names one holder and cannot count several"
LACKS: Lacks = {
    Primitive.RWLOCK: _ALONE,
    Primitive.SEMAPHORE: _ALONE,
    Primitive.OWNER: _ALONE,
    Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
    Primitive.ONCE: "a cache may evict a record, and the body would run again",
}
