"""Checks that fences grow, as far as one client can see.

A fence is the number of the transaction that made the lease's node. The servers number transactions in order, so a
node gets a greater number than any transaction that was seen before its request. If it does not, the servers have lost
data (restored from a copy, or deleted), and new fences are smaller than fences that were granted before.
"""

from __future__ import annotations

from holdfast.core.events import logger


class Fences:
    """The fences of one client. It needs no mutex: if two threads store at once, both values were seen."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.greatest = 0  # the greatest number of a transaction that was seen
        self.problem = ""  # for operators; "" again as soon as a fence is greater than all before

    def observe(self, number: int) -> None:
        """The servers have applied a transaction with this number."""
        self.greatest = max(self.greatest, number)

    def check_fence(self, fence: int, before: int) -> None:
        """A node was created with this number; `before` is `greatest` from before its request."""
        if fence > before:
            self.observe(fence)
            if fence >= self.greatest:
                self.problem = ""
            return
        is_new = not self.problem
        self.problem = (
            f"{self._url}: the servers have older data than before, so fences went back: {fence} was granted after "
            f"{before} was seen. A guard refuses them until they are greater than those that it has seen: reset the "
            "guard while no client writes, or restore newer data"
        )
        if is_new:
            logger().warning("%s", self.problem)
