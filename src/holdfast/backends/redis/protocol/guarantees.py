"""The guarantees of each method, and the primitives that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

_PLAIN = Guarantees(
    exclusion=Exclusion.BEST_EFFORT,
    fence=FenceOrder.BEST_EFFORT,  # a clock and nothing else
    order=Order.NONE,
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)

GUARANTEES = {
    "queue": Guarantees(
        # The last writes can be lost in a crash or a failover. The next holder then has a greater fence than the last.
        exclusion=Exclusion.BEST_EFFORT,
        fence=FenceOrder.CLOCK_BOUNDED,
        order=Order.TURNS,  # FIFO with local_handover=no
        wake=Wake.PUSH,
        scope=Scope.NETWORK,
    ),
    "setnx": _PLAIN,
    "getset": _PLAIN,
}

_ONE_HOLDER = "its one key has room for one holder"
_PLAIN_LACKS: Lacks = {
    **dict.fromkeys((Primitive.RWLOCK, Primitive.SEMAPHORE, Primitive.OWNER), _ONE_HOLDER),
    Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
    Primitive.ONCE: "its fences come from clocks alone, so a repeated run might not have the greater one",
}
_GETSET_LACKS: Lacks = {
    **_PLAIN_LACKS,
    Primitive.TRANSFER: "plain commands cannot compare and set the value of a key",
    **dict.fromkeys(
        (Primitive.LOCK_DELAY, Primitive.MIN_HOLD),
        "a client that loses a take-over may overwrite the end of the next lease",
    ),
}
LACKS: Mapping[str, Lacks] = {"queue": {}, "setnx": _PLAIN_LACKS, "getset": _GETSET_LACKS}
