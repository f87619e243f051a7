"""What the two methods promise."""

from __future__ import annotations

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake

QUEUE = Guarantees(
    exclusion=Exclusion.CONSENSUS,
    fence=FenceOrder.UNCONDITIONAL,
    order=Order.FIFO,
    wake=Wake.PUSH,
    scope=Scope.NETWORK,
)
KEY = QUEUE._replace(order=Order.NONE)
