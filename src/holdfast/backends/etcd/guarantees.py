"""What the two methods promise, and what they lack."""

from __future__ import annotations

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
_NOT_YET = "not there yet"
QUEUE_LACKS: Lacks = {
    Primitive.LOCK_DELAY: _NOT_YET,
    Primitive.ONCE_PER: _NOT_YET,
    Primitive.REVOKE: _NOT_YET,
    Primitive.OWNER: _NOT_YET,
}
KEY_LACKS: Lacks = {Primitive.RWLOCK: _ALONE, Primitive.SEMAPHORE: _ALONE, **QUEUE_LACKS}
