"""Nodes that are kept for a time, whether their client lives or not: registers and records.

Not every server supports nodes with a ttl, so a client that creates such a node sometimes deletes old ones. Versions
alone do not make that safe: a node that is deleted and created again starts with version 0, so a client that has read
the old node could overwrite the new one. Therefore each transaction that deletes such nodes also writes their parent,
whose version counts these deletions, and each write or delete of such a node checks that version too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from holdfast.backends.zookeeper.port import (
    Answer,
    Children,
    Delete,
    Get,
    Node,
    Session,
    Set,
    Transaction,
    ZookeeperPort,
)
from holdfast.backends.zookeeper.protocol.nodes import REGISTERS
from holdfast.backends.zookeeper.protocol.parents import Parents
from holdfast.core.events import logger
from holdfast.core.ports import Runtime
from holdfast.errors import HoldfastError

SAMPLE_SHARE = 4  # nodes read in one search, for each node created since, so in the long run at most a quarter is old
KEEP_MAX = 100 * 366 * 86400.0  # seconds: practically forever


class KeptNodes(ABC):
    """The nodes of one kind below the root of the URL."""

    reap_every: ClassVar[int]  # new nodes, on average, between two searches for old ones
    batch_max: ClassVar[int]  # nodes in one round trip

    def __init__(self, url: str, root: str, port: ZookeeperPort, runtime: Runtime, parents: Parents) -> None:
        self._url, self._port, self._runtime, self._parents = url, port, runtime, parents
        self._top = f"{root}/{REGISTERS}"  # the nodes of all kinds are below this one

    @abstractmethod
    def _is_old(self, node: Node, now: float) -> bool:
        """Whether the node may be deleted at this time on the leader's clock."""

    def _should_reap(self) -> bool:
        return self._runtime.jitter() < 1 / self.reap_every

    async def _reap(self, session: Session, parent: str, now: float, version: int, deadline: float) -> None:
        """Delete the old nodes of a sample. `now` is by the leader's clock, `version` that of the parent."""
        try:
            paths = await self._sample(session, parent, deadline)
            for first in range(0, len(paths), self.batch_max):
                batch = paths[first : first + self.batch_max]
                answers = await self._port.call(session, [Get(path) for path in batch], deadline=deadline)
                deletes = [
                    Delete(path, node.version)
                    for path, node in zip(batch, answers, strict=True)
                    if isinstance(node, Node) and self._is_old(node, now)
                ]
                if not deletes:
                    continue
                transaction = Transaction((Set(parent, b"", version), *deletes))
                (answer,) = await self._port.call(session, (transaction,), deadline=deadline)
                if answer is not None:
                    return  # a node was written, or another client deletes old ones; a later search will do it
                version += 1  # only after success: otherwise this could be the count of another client
        except HoldfastError as error:
            logger().info("old nodes below %s in %s stay for now: %s", parent, self._url, error)  # the new one exists

    async def _sample(self, session: Session, parent: str, deadline: float) -> list[str]:
        """The paths of some of the nodes, from a random position on."""
        (names,) = await self._port.call(session, (Children(parent),), deadline=deadline)
        if not isinstance(names, list):
            raise self._parents.error_for(names, parent)
        first = int(self._runtime.jitter() * len(names))
        count = min(SAMPLE_SHARE * self.reap_every, len(names))
        return [f"{parent}/{names[index % len(names)]}" for index in range(first, first + count)]


def version_of(parent: Answer) -> int:
    """The version of the parent. If it did not exist, it is new, and so are all its children."""
    return parent.version if isinstance(parent, Node) else 0
