"""The servers of one cluster, which are tried in turn, and the watcher: the common part of the ports.

A server that does not answer must not use up the caller's time: each gets its share of the time that is left, and the
next request is sent first to the server that answered last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from holdfast.backends.net.connection import PolledConnection
from holdfast.backends.net.pool import ServerPools
from holdfast.backends.net.servers import ServersConfig
from holdfast.backends.net.watcher import BaseWatcher
from holdfast.core.notifications import Wakeups
from holdfast.core.ports import Runtime
from holdfast.errors import AccessDenied, BackendUnavailable, OutcomeUnknown
from holdfast.url_parts import Node

T = TypeVar("T")
W = TypeVar("W")
C = TypeVar("C", bound=PolledConnection)


class ServerCluster(ServerPools[C], Generic[C, W]):
    """Connections to the servers, and the watcher."""

    def __init__(self, config: ServersConfig, runtime: Runtime, watcher: BaseWatcher[W, Any]) -> None:
        super().__init__(config.url, config.nodes, runtime, config.max_connections)
        self._watcher = watcher
        self._nodes = config.nodes  # in the order in which they are tried

    async def _try_each(
        self, work: Callable[[Node, float, bool], Awaitable[T]], deadline: float, *, once: bool = False
    ) -> T:
        """The result of `work`, with the first server that answers before its share of the time is over.

        The arguments of `work` are the server, the end of its share, and whether an earlier server got the request and
        may still execute it. With `once`, no other server gets the request after such a server.
        """
        nodes = self._nodes
        unanswered: OutcomeUnknown | None = None
        refused: BackendUnavailable | None = None
        for number, node in enumerate(nodes):
            now = self._now()
            try:
                until = now + (deadline - now) / (len(nodes) - number)
                return await work(node, until, unanswered is not None)
            except AccessDenied as error:
                if unanswered is not None:  # another server may have executed it before
                    raise unanswered from error
                raise
            except BackendUnavailable as error:
                refused = error
            except OutcomeUnknown as error:
                unanswered = error
            self.avoid(node)
            self._watcher.avoid(node)
            if unanswered is not None and once:
                break
        raise unanswered or refused or BackendUnavailable(backend=self._url, problem="no server is configured")

    def avoid(self, node: Node) -> None:
        """This server does not answer: try another one first."""
        first, *others = self._nodes
        if first == node:
            self._nodes = (*others, first)

    # ── watches ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def wakeups(self) -> Wakeups:
        return self._watcher.wakeups

    def watch(self, nonce: str, watched: W) -> None:
        self._watcher.watch(nonce, watched)

    def unwatch(self, nonce: str) -> None:
        self._watcher.unwatch(nonce)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        await self._watcher.close()
        await super().close()

    def abandon(self) -> None:
        self._watcher.abandon()
        super().abandon()
