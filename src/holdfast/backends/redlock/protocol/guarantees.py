"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

GUARANTEES = Guarantees(
    # A node may forget, or its clock jump; what is left then is the fence.
    exclusion=Exclusion.BEST_EFFORT,
    fence=FenceOrder.CLOCK_BOUNDED,
    order=Order.NONE,
    wake=Wake.PUSH,
    scope=Scope.NETWORK,
)
_ALONE = "it can say who holds a lock, not how many"
LACKS: Lacks = {Primitive.RWLOCK: _ALONE, Primitive.SEMAPHORE: _ALONE, Primitive.OWNER: _ALONE}
