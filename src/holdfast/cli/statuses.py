"""Exit statuses, the same for every command, so that a script can tell the cases apart.

Those from 122 on are chosen so that a command run under a lock hardly uses them itself; a shell uses 126 and above.
"""

from __future__ import annotations

DONE = 0
NOT_DONE = 1  # what was asked for did not come out: the lock is free, nothing was broken, a check failed
USAGE = 2  # bad arguments or settings; argparse uses the same number
REVOKED = 122  # a lease was asked for, and its command ended
LOST = 123  # a lease was lost
BUSY = 124  # the lock was busy until the time was up
UNAVAILABLE = 125  # the store could not be asked
BROKEN_PIPE = 141  # the reader of the output has gone: 128 + SIGPIPE, a signal that Windows does not have


def of_signal(number: int) -> int:
    """What a shell says of a program that this signal ended."""
    return 128 + number
