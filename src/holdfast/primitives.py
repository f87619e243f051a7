"""What can be done with a store, as data: which primitives it has, and why it lacks the others.

A backend's protocol.py has, beside its GUARANTEES, for each method of its URL what that method lacks:

    LACKS = {"queue": {}, "setnx": {Primitive.SEMAPHORE: "one key holds one holder"}}     or one dict without methods

What is not named there it can do; the conformance suite tries both sides of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Primitive(Enum):
    """One thing that a program can ask of a client; the word is the method or the option it asks with."""

    LOCK = "lock"
    RWLOCK = "rwlock"
    SEMAPHORE = "semaphore"
    LOCK_ALL = "lock_all"
    ELECTION = "election"
    ONCE_PER = "once_per"
    LOCK_DELAY = "lock_delay"
    REVOKE = "revoke"
    OWNER = "owner"


Lacks = Mapping[Primitive, str]  # and why
