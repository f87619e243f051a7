"""The guarantees of the backend, and the primitives that it lacks."""

from __future__ import annotations

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

REPLICAS_MIN = 3  # with fewer copies of the bucket, the failure of one server is not survived

GUARANTEES = Guarantees(
    exclusion=Exclusion.CONSENSUS,
    fence=FenceOrder.DURABLE_STORAGE,
    order=Order.NONE,
    wake=Wake.PUSH,
    scope=Scope.NETWORK,
)
# A server flushes its files every two minutes by default, so the last writes can be lost in a power failure.
SINGLE = GUARANTEES._replace(exclusion=Exclusion.BEST_EFFORT)

_ALONE = "its one key has room for one holder"
_OLD_DATA = "a server that was the leader until just now may answer"
LACKS: Lacks = {
    Primitive.RWLOCK: _ALONE,
    Primitive.SEMAPHORE: _ALONE,
    Primitive.OWNER: _ALONE,
    Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
    Primitive.ONCE: f"{_OLD_DATA} that a key which is done was interrupted",
    Primitive.TRANSFER: f"{_OLD_DATA} that there is no such lease",
}
