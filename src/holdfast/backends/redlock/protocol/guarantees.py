"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

GUARANTEES = Guarantees(
    # A node may lose data, or its clock may jump; then only the fence protects.
    exclusion=Exclusion.BEST_EFFORT,
    fence=FenceOrder.CLOCK_BOUNDED,
    order=Order.NONE,
    wake=Wake.PUSH,
    scope=Scope.NETWORK,
)
_ONE_HOLDER = "a node has one vote for each lock, so there is one holder"
LACKS: Lacks = {
    Primitive.RWLOCK: _ONE_HOLDER,
    Primitive.SEMAPHORE: _ONE_HOLDER,
    Primitive.OWNER: _ONE_HOLDER,
    Primitive.TRANSFER: "each node would move its vote by itself, so a text that is used twice could end the lease",
    Primitive.ONCE: "its nodes agree on numbers only, not on a record",
}
