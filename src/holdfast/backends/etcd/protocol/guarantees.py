"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

QUEUE = Guarantees(
    exclusion=Exclusion.CONSENSUS,
    fence=FenceOrder.UNCONDITIONAL,
    order=Order.FIFO,
    wake=Wake.PUSH,
    scope=Scope.NETWORK,
)
KEY = QUEUE._replace(order=Order.NONE)

_ALONE = "its one key has room for one holder"
_FENCE = "the create revision of its key is the fence, and cannot grow while the key exists"
QUEUE_LACKS: Lacks = {
    Primitive.OWNER: "keys in their order are the lock: etcdctl and Go would not see that two belong to one owner",
    Primitive.TRANSFER: _FENCE,
}
KEY_LACKS: Lacks = {
    Primitive.RWLOCK: _ALONE,
    Primitive.SEMAPHORE: _ALONE,
    Primitive.OWNER: _ALONE,
    Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
    Primitive.TRANSFER: _FENCE,
}

GUARANTEES: Mapping[str, Guarantees] = {"queue": QUEUE, "key": KEY}
LACKS: Mapping[str, Lacks] = {"queue": QUEUE_LACKS, "key": KEY_LACKS}
