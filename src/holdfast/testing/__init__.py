"""Tests of programs that use locks: isolated stores in memory, and a world whose clock is moved by hand.

    from holdfast.testing import World

    with World() as world:
        lease = world.client().lock("report").acquire()
        world.lose(lease)

With pytest, the fixtures `holdfast_client`, `holdfast_async_client`, `holdfast_default` and `holdfast_world` do this.
With unittest, use `self.enterContext(memory_client())`.
"""

from __future__ import annotations

from holdfast.testing.clock import Clock
from holdfast.testing.stores import memory_async_client, memory_client, memory_default
from holdfast.testing.world import Running, World

__all__ = ["Clock", "Running", "World", "memory_async_client", "memory_client", "memory_default"]
