"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks

GUARANTEES = Guarantees(
    exclusion=Exclusion.DURABLE_AUTHORITY,
    fence=FenceOrder.UNCONDITIONAL,
    order=Order.FIFO,
    wake=Wake.PUSH,
    scope=Scope.PROCESS,
)
LACKS: Lacks = {}
