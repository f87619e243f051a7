"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

GUARANTEES = Guarantees(
    exclusion=Exclusion.CONSENSUS,
    fence=FenceOrder.DURABLE_STORAGE,
    order=Order.FIFO,
    wake=Wake.PUSH,
    scope=Scope.NETWORK,
)
LACKS: Lacks = {
    Primitive.OWNER: "nodes in their order are the lock: Curator and kazoo would not see that two belong to one owner",
    Primitive.MIN_HOLD: "a node ends with the session of its client, and so with its process",
    Primitive.TRANSFER: "a node belongs to the session of its client, and its number is the fence",
    Primitive.RENEW_TTL: "the ttl is that of the session, which several leases of a client share",
}
