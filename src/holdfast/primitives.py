"""The primitives of a store, as data, with the reasons why a store lacks some.

The module protocol/guarantees.py of a backend has, beside GUARANTEES, what each method lacks:

    LACKS = {"queue": {}, "setnx": {Primitive.SEMAPHORE: "one key holds one holder"}}     or one dict without methods

A primitive that is not listed is supported. The conformance suite tests both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Primitive(Enum):
    """A feature of a client. The value is the name of the method or option."""

    LOCK = "lock"
    RWLOCK = "rwlock"
    SEMAPHORE = "semaphore"
    LOCK_ALL = "lock_all"
    ELECTION = "election"
    ONCE_PER = "once_per"
    ONCE = "once"
    LOCK_DELAY = "lock_delay"
    REVOKE = "revoke"
    OWNER = "owner"
    DETECT_DEADLOCKS = "detect_deadlocks"
    RENEW_TTL = "renew(ttl)"
    MIN_HOLD = "min_hold"
    TRANSFER = "transfer"


Lacks = Mapping[Primitive, str]  # with the reason
