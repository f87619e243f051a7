"""The cases of CPython that do not run on our locks, with the reason. All other cases run unchanged.

A key is module.class.test. If it is for one variant only, a blank and the name of the variant follow:
    by owner   release() is `lock.release()`, which releases a lease of the calling thread
    by lease   release() is `lease.release()`, which releases the lease of any thread
    with I/O   the methods of the backend take time (all backends but memory)
test_structure.py fails for a key that names no case.
"""

from __future__ import annotations

_REPR = "our repr shows the name and the ttl; only the store knows whether the lock is held"
_ZERO = "a limit is at least 1: a new semaphore always has a free permit"
_TAKEN_FIRST = f"{_ZERO} (test_cancel_races.py acquires it first)"
_PLAIN_CALL = "it calls release() from a function that is not a coroutine; ours is awaited"
_OTHERS = "it releases leases of other threads; SemaphoreTests runs it by lease"
_OWN_WAIT = "waiting for oneself raises WouldDeadlock (test_thread_rules.py)"

NOT_RUN: dict[str, str] = {
    # ── threading.Lock ───────────────────────────────────────────────────────────────────────────────────────────
    "lock_tests.LockTests.test_repr": _REPR,
    "lock_tests.LockTests.test_locked_repr": _REPR,
    "lock_tests.LockTests.test_reacquire": _OWN_WAIT,
    "lock_tests.LockTests.test_different_thread by owner": "only lease.release() may (test_thread_rules.py)",
    "lock_tests.LockTests.test_at_fork_reinit": "a private hook of threading; after a fork our client starts again",
    # ── threading.RLock ──────────────────────────────────────────────────────────────────────────────────────────
    "lock_tests.RLockTests.test_repr": _REPR,
    "lock_tests.RLockTests.test_locked_repr": _REPR,
    "lock_tests.RLockTests.test_release_save_unacquired": "a private hook for Condition, which we do not have",
    # ── threading.Semaphore, threading.BoundedSemaphore ──────────────────────────────────────────────────────────
    "lock_tests.SemaphoreTests.test_repr": _REPR,
    "lock_tests.SemaphoreTests.test_release_unacquired": "permits never exceed the limit: ours is a BoundedSemaphore",
    "lock_tests.BoundedSemaphoreTests.test_repr": _REPR,
    "lock_tests.BoundedSemaphoreTests.test_acquire_contended by owner": _OTHERS,
    "lock_tests.BoundedSemaphoreTests.test_multirelease by owner": _OTHERS,
    # ── asyncio.Lock ─────────────────────────────────────────────────────────────────────────────────────────────
    "test_locks.LockTests.test_repr": _REPR,
    "test_locks.LockTests.test_lock_doesnt_accept_loop_parameter": "about the constructors of asyncio's own classes; "
    "ours come from a client",
    "test_locks.LockTests.test_cancel_race": "it reads asyncio's futures (test_cancel_races.py has the race)",
    "test_locks.LockTests.test_cancel_release_race": f"{_PLAIN_CALL} (test_cancel_races.py has the race)",
    "test_locks.LockTests.test_release_not_acquired": f"{_PLAIN_CALL} (test_cancel_races.py has it awaited)",
    # ── asyncio.Semaphore ────────────────────────────────────────────────────────────────────────────────────────
    "test_locks.SemaphoreTests.test_repr": _REPR,
    "test_locks.SemaphoreTests.test_initial_value_zero": _ZERO,
    "test_locks.SemaphoreTests.test_acquire_cancel_before_awoken": _TAKEN_FIRST,
    "test_locks.SemaphoreTests.test_acquire_hang": _TAKEN_FIRST,
    "test_locks.SemaphoreTests.test_acquire_no_hang with I/O": "our release() may grant the lock to the waiter "
    "before the case cancels it (test_cancel_races.py accepts both orders)",
    "test_locks.SemaphoreTests.test_acquire_fifo_order_2": "it releases two permits of a semaphore that has one",
    "test_locks.SemaphoreTests.test_acquire_fifo_order_3": _TAKEN_FIRST,
    "test_locks.SemaphoreTests.test_acquire_fifo_order_4": _ZERO,
    "test_locks.SemaphoreTests.test_release_not_acquired": f"{_PLAIN_CALL} (test_cancel_races.py has it awaited)",
}

# Cases that only newer Pythons have. On older ones their keys name no case.
SINCE: dict[str, tuple[int, int]] = {
    "test_locks.SemaphoreTests.test_acquire_fifo_order_4": (3, 13),
}

# Whole classes that are not about locks or semaphores.
LEFT_OUT: dict[str, str] = {
    "lock_tests.EventTests": "holdfast has no events",
    "lock_tests.ConditionTests": "holdfast has no conditions",
    "lock_tests.BarrierTests": "holdfast has no barriers",
    "test_locks.EventTests": "holdfast has no events",
    "test_locks.ConditionTests": "holdfast has no conditions",
    "test_locks.BarrierTests": "holdfast has no barriers",
}


def keys(case: str, *, release_mode: str, backend: str) -> tuple[str, ...]:
    """The keys under which the table may have a reason not to run module.class.test in this variant."""
    return (case, f"{case} {release_mode}", *([] if backend == "memory" else [f"{case} with I/O"]))


def why_not_run(case: str, *, release_mode: str, backend: str) -> str | None:
    """The reason not to run module.class.test in this variant, if there is one."""
    return next(
        (NOT_RUN[key] for key in keys(case, release_mode=release_mode, backend=backend) if key in NOT_RUN), None
    )
