"""The guarantees of a folder of lock files, and the primitives that it lacks."""

from holdfast.backends.api import Exclusion, FenceOrder, Guarantees, Lacks, Order, Primitive, Scope, Wake

GUARANTEES = Guarantees(
    exclusion=Exclusion.DURABLE_AUTHORITY,  # a crash of the machine can lose files, but it ends all holders too
    fence=FenceOrder.CLOCK_BOUNDED,
    order=Order.NONE,
    wake=Wake.POLL,
    scope=Scope.MACHINE,
)

_ALONE = "a lock file names one holder"
_NOT_SYNCED = "a crash of the machine can lose a lock file"
_NO_REGISTERS = "the folder has no registers"
LACKS: Lacks = {
    Primitive.RWLOCK: _ALONE,
    Primitive.SEMAPHORE: _ALONE,
    Primitive.OWNER: _ALONE,
    Primitive.DETECT_DEADLOCKS: "its waiters leave no record",
    Primitive.LOCK_DELAY: _NOT_SYNCED,
    Primitive.MIN_HOLD: _NOT_SYNCED,
    Primitive.ONCE_PER: _NO_REGISTERS,
    Primitive.REVOKE: _NO_REGISTERS,
    Primitive.ONCE: "the folder has no records",
    Primitive.TRANSFER: "this example leaves it out",
}
