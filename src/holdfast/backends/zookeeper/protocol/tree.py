"""The paths of locks in the tree of nodes, and the verbs of operators on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.zookeeper.port import Answer, Children, Delete, Get, Node, Refusal, Session, ZookeeperPort
from holdfast.backends.zookeeper.protocol.nodes import (
    REGISTERS,
    SESSIONS,
    escaped,
    parse_node,
    path_problem,
    queue_entries,
    unescaped,
)
from holdfast.backends.zookeeper.protocol.ticket_values import ticket_info
from holdfast.core.tickets import LockInfo, TicketInfo, first_blocker
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.config import ZookeeperConfig
    from holdfast.backends.zookeeper.protocol.parents import Parents


class Tree:
    """The locks of one ensemble below the root of the URL."""

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, parents: Parents) -> None:
        self._root = config.root
        self._raw_names = config.raw_names
        self._port = port
        self._parents = parents

    def lock_path(self, name: str) -> str:
        """The path of the lock's node."""
        if not self._raw_names:
            return f"{self._root}/{escaped(name)}"
        path = f"/{name}"
        top = name.partition("/")[0]
        problem = path_problem(path) or (f"{top} is taken" if top in (SESSIONS, REGISTERS) else "")
        if problem:
            raise ConfigurationError(f"name {name!r} cannot be a node of ZooKeeper as it is (raw_names): {problem}")
        return self._root + path

    async def children(self, session: Session, lock: str, deadline: float) -> list[str]:
        (children,) = await self._port.call(session, (Children(lock),), deadline=deadline)
        return self.children_of(children)

    def children_of(self, answer: Answer) -> list[str]:
        """The children of a lock's node; none if the node does not exist."""
        if isinstance(answer, list):
            return answer
        if answer is Refusal.NO_NODE:
            return []
        raise self._parents.error_for(answer, "the lock's node")

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, session: Session, name: str, deadline: float) -> LockInfo:
        info, _ = await self._describe(session, name, self.lock_path(name), deadline)
        return info

    async def locks(self, session: Session, prefix: str, deadline: float) -> list[LockInfo]:
        infos = []
        for name, path in await self._lock_paths(session, deadline):
            if name.startswith(prefix):
                info, _ = await self._describe(session, name, path, deadline)
                if info.holders or info.waiters:
                    infos.append(info)
        return sorted(infos, key=lambda info: info.name)

    async def break_lock(self, session: Session, name: str, fence: int, deadline: float) -> bool:
        info, paths = await self._describe(session, name, self.lock_path(name), deadline)
        broken = [path for path, holder in zip(paths, info.holders, strict=False) if holder.fence == fence > 0]
        if not broken:
            return False
        (answer,) = await self._port.call(session, (Delete(broken[0]),), deadline=deadline)
        if answer is not None and answer is not Refusal.NO_NODE:
            raise self._parents.error_for(answer, broken[0])
        return answer is None

    async def _describe(self, session: Session, name: str, lock: str, deadline: float) -> tuple[LockInfo, list[str]]:
        """The holders and waiters of a lock, and the paths of their nodes, in order."""
        ordered = queue_entries(await self.children(session, lock, deadline))
        if not ordered:
            return LockInfo(name, (), ()), []
        requests = [Get(f"{lock}/{entry.node}") for entry in ordered]
        answers = await self._port.call(session, requests, deadline=deadline)
        if Refusal.NO_RIGHT in answers:
            raise self._parents.error_for(Refusal.NO_RIGHT, f"the nodes below {lock}")
        existing = [(entry, node) for entry, node in zip(ordered, answers, strict=True) if isinstance(node, Node)]
        holders: list[TicketInfo] = []
        waiters: list[TicketInfo] = []
        for index, (entry, node) in enumerate(existing):
            granted = first_blocker(entry.limit, (other for other, _ in existing[:index])) is None and not waiters
            if granted or entry.waits:
                (holders if granted else waiters).append(ticket_info(entry, node, granted=granted))
        return LockInfo(name, tuple(holders), tuple(waiters)), [f"{lock}/{entry.node}" for entry, _ in existing]

    async def _lock_paths(self, session: Session, deadline: float) -> list[tuple[str, str]]:
        """The names of all locks that have a node, with their paths."""
        locks: list[tuple[str, str]] = []
        below = [""]
        while below:
            parents = [self._root + part for part in below]
            listed = await self._port.call(session, [Children(parent or "/") for parent in parents], deadline=deadline)
            next_below: list[str] = []
            for part, names in zip(below, listed, strict=True):
                if names is Refusal.NO_RIGHT:
                    raise self._parents.error_for(names, self._root + part)
                for node in names if isinstance(names, list) else ():
                    path = f"{part}/{node}"
                    if path in (f"/{SESSIONS}", f"/{REGISTERS}", "/zookeeper") or (
                        part and parse_node(node) is not None
                    ):
                        continue
                    if self._raw_names:
                        locks.append((path[1:], self._root + path))
                        next_below.append(path)
                    elif (name := unescaped(node)) is not None:
                        locks.append((name, self._root + path))
            below = next_below
        return locks
