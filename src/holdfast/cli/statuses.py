"""Exit statuses. They are the same for every command.

The statuses from 121 to 125 are rarely used by commands that `holdfast run` starts. Shells use 126 and above.
"""

from __future__ import annotations

DONE = 0
NOT_DONE = 1  # the lock is free, nothing was broken, or a check failed
USAGE = 2  # bad arguments or settings, as in argparse
INTERRUPTED = 121  # of a key: an earlier run was interrupted, or has failed
REVOKED = 122  # the lease was revoked and its command ended
LOST = 123  # a lease was lost
BUSY = 124  # the lock was not acquired before the timeout
UNAVAILABLE = 125  # the store is not available
BROKEN_PIPE = 141  # the reader closed the pipe: 128 + SIGPIPE, which Windows does not define


def of_signal(number: int) -> int:
    """Return the status that a shell reports for a program ended by this signal."""
    return 128 + number
