"""What a lock's key says: every method of ours writes its name into the value. Anything else is another program's.

holdfast:queue:<nonce>                 one ticket is in
holdfast:queue:+@<owner>               tickets of that owner are in; which ones, the side keys say
holdfast:queue:+shared                 readers or permits are in; which ones, the side keys say
holdfast:setnx:<nonce>:<fence>
holdfast:getset:<nonce>:<end>:<fence>
"""

from __future__ import annotations

from holdfast.errors import NameConflict

QUEUE = "holdfast:queue:"
SEVERAL = f"{QUEUE}+"
SHARED_BEFORE = "holdfast:shared"  # as earlier versions wrote it
SETNX = "holdfast:setnx:"
GETSET = "holdfast:getset:"
REDLOCK = "holdfast:redlock:"


def method_in(value: str) -> str | None:
    """The method with which the lock is in use; None if that is not ours."""
    if value == SHARED_BEFORE:
        return "queue"
    return value.split(":")[1] if value.startswith((QUEUE, SETNX, GETSET, REDLOCK)) else None


def method_conflict(lock: str, method: str) -> NameConflict:
    """The error for a lock that is in use with another method than ours."""
    used = "redlock://" if method == "redlock" else f"method={method}"
    return NameConflict(
        lock=lock,
        reason=f"it is in use with {used}, and two methods need not exclude each other: "
        "give all programs the same method, or use another name",
    )
