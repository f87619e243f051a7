"""The verbs that many backends have in common.

Pure, as everything in `protocol/`: no sockets, threads or clocks.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime


class Port(Protocol):
    """The part of a port that does not depend on the store."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop the inherited connections without sending anything on them."""


P = TypeVar("P", bound=Port)


class BaseBackend(Generic[P]):
    """A backend on one port, whose store notices neither the death of a holder nor that it was replaced.

    A subclass adds the other verbs, and replaces `intact` if it can notice another store, such as a restored one.
    """

    liveness_fds: tuple[int, ...] = ()  # the store does not notice that a holder has died

    def __init__(self, url: str, port: P, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime

    def intact(self, store: Hashable) -> bool:
        return True

    async def close(self) -> None:
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()
