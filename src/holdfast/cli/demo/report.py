"""What a worker says on its pipe: one JSON line for each thing that happens to it."""

from __future__ import annotations

import json
import time
from typing import Literal, NamedTuple

from holdfast.runtimes import system

# ready     it has opened the store and waits for "go"
# asks      it goes to wait for the lock
# got       it has the lock: `at` was read right after it was told so
# stays     its work should be over, but it was told to keep the lock
# done      it is about to give it back: `at` was read right before that, and this line was written before it as well,
#           so that nobody hears of the next holder first
# failed    it cannot go on; `text` says why
# ended     its process is gone (said by the parent); `text` says how, unless that was to be expected
What = Literal["ready", "asks", "got", "stays", "done", "failed", "ended"]

# One clock for all processes of the machine. It goes on while the machine is suspended, as leases do.
CLOCK_NAME = "CLOCK_BOOTTIME" if hasattr(time, "CLOCK_BOOTTIME") else "CLOCK_MONOTONIC"


class Report(NamedTuple):
    """One line."""

    worker: int
    what: What
    at: float  # on the common clock
    fence: int = 0  # got, done
    text: str = ""

    def to_line(self) -> bytes:
        return json.dumps(self).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Report:
        return cls(*json.loads(line))


def clock() -> float:
    """Now, in seconds, the same for every process of this machine."""
    return system.now()
