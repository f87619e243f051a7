"""Whether fences still grow, as far as one client can see.

A fence is the number of the transaction that made the lease's node. The servers number transactions in order, so a
node gets a greater number than any transaction that was seen before it was requested. If it does not, the servers came
back with older data (restored from a copy, or deleted), and fences begin again below those that were given out.
"""

from __future__ import annotations

from holdfast.core.events import logger


class Fences:
    """Of one client. Without a mutex: of two threads that store at once, each has seen what it stores."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.greatest = 0  # of all transactions that were seen
        self.problem = ""  # what is wrong, for people; "" again as soon as fences are greater than all before

    def observe(self, number: int) -> None:
        """The servers have applied a transaction with this number."""
        self.greatest = max(self.greatest, number)

    def check_fence(self, fence: int, before: int) -> None:
        """A node was made that has this number; `before` is what was the greatest when it was requested."""
        if fence > before:
            self.observe(fence)
            if fence >= self.greatest:
                self.problem = ""
            return
        is_new = not self.problem
        self.problem = (
            f"{self._url}: the servers came back with older data, so fences have begun again: {fence} was given after "
            f"{before} was seen. A guard refuses them until they are greater than those that it has seen: reset what "
            "it remembers, while no client writes, or restore newer data"
        )
        if is_new:
            logger().warning("%s", self.problem)
