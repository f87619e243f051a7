"""The nodes of one member, as the transactions that it has applied left them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.backends.zookeeper.port import (
    Answer,
    Check,
    Children,
    Create,
    Created,
    CreateParent,
    CreatePersistent,
    Delete,
    Ephemerals,
    Get,
    Node,
    Refusal,
    Request,
    Set,
    Transaction,
)

Watch = tuple[type[Children | Get], str]


class Change(NamedTuple):
    """One transaction, or a part of one. `data` is None if the node is deleted."""

    zxid: int
    path: str
    data: bytes | None
    time: float
    is_new: bool = False
    owner: int = 0
    parts: tuple[Change, ...] | None = None


class Znode:
    """One node of the tree."""

    __slots__ = ("children", "ctime", "czxid", "data", "mtime", "next_sequence", "owner", "version")

    def __init__(self, data: bytes, czxid: int, time: float, owner: int) -> None:
        self.data = data
        self.czxid = czxid
        self.ctime = self.mtime = time
        self.owner = owner
        self.version = 0
        self.children: set[str] = set()
        self.next_sequence = 0  # the number for the next sequential child


class Tree:
    """All nodes, by path."""

    def __init__(self, first_number: int = 0) -> None:
        self._first_number = first_number  # of a new node's children; a real server starts with 0
        self.nodes: dict[str, Znode] = {"": Znode(b"", 0, 0.0, 0)}
        self.zxid = 0

    def refusal(self, request: Request) -> Refusal | None:
        """Why a write would be refused; None if it would not."""
        if isinstance(request, Create | CreateParent | CreatePersistent):
            path = request.path
            if parent_of(path) not in self.nodes:
                return Refusal.NO_NODE
            is_sequential = isinstance(request, Create) and request.is_sequential
            return Refusal.EXISTS if path in self.nodes and not is_sequential else None
        parts = request.requests if isinstance(request, Transaction) else (request,)
        versions = {part.path: self.nodes[part.path].version for part in parts if part.path in self.nodes}
        for part in parts:  # each sees the changes of the parts before it
            if part.path not in versions:
                return Refusal.NO_NODE
            if isinstance(part, Check | Set | Delete) and part.version not in (-1, versions[part.path]):
                return Refusal.CHANGED
            if isinstance(part, Set):
                versions[part.path] += 1
            elif isinstance(part, Delete):
                del versions[part.path]
        return None

    def plan(self, request: Request, session: int, zxid: int, now: float) -> Change:
        """The transaction for a write."""
        match request:
            case Create(path, data, is_sequential):
                if is_sequential:
                    path += sequence_suffix(self.nodes[parent_of(path)].next_sequence)
                return Change(zxid, path, data, now, is_new=True, owner=session)
            case CreateParent(path, _):
                return Change(zxid, path, b"", now, is_new=True)
            case CreatePersistent(path, data):
                return Change(zxid, path, data, now, is_new=True)
            case Set(path, data, _):
                return Change(zxid, path, data, now)
            case Transaction(requests):
                parts = (
                    self.plan(request, session, zxid, now) for request in requests if not isinstance(request, Check)
                )
                return Change(zxid, "", None, now, parts=tuple(parts))
            case _:
                return Change(zxid, request.path, None, now)

    def apply(self, change: Change) -> list[Watch]:
        """Apply a transaction; return the watches that it fires."""
        self.zxid = change.zxid
        if change.parts is not None:
            return [watch for part in change.parts for watch in self.apply(part)]
        path, above = change.path, parent_of(change.path)
        if change.data is None:
            del self.nodes[path]
            self.nodes[above].children.discard(name_of(path))
            return [(Get, path), (Children, path), (Children, above)]
        if change.is_new:
            made = self.nodes[path] = Znode(change.data, change.zxid, change.time, change.owner)
            made.next_sequence = self._first_number
            self.nodes[above].children.add(name_of(path))
            self.nodes[above].next_sequence += 1
            return [(Get, path), (Children, above)]
        node = self.nodes[path]
        node.data, node.mtime = change.data, change.time
        node.version += 1
        return [(Get, path)]

    def read(self, request: Children | Get | Ephemerals, session: int) -> Answer:
        if isinstance(request, Ephemerals):
            return [path for path in self.owned_by(session) if path.startswith(request.path)]
        node = self.nodes.get("" if request.path == "/" else request.path)
        if node is None:
            return Refusal.NO_NODE
        if isinstance(request, Children):
            return sorted(node.children)
        return Node(node.data, node.czxid, node.ctime, node.mtime, node.owner, node.version)

    def done(self, request: Request, change: Change) -> Answer:
        """The answer to a write."""
        return Created(change.path, change.zxid) if isinstance(request, Create) else None

    def owned_by(self, session: int) -> list[str]:
        return [path for path, node in self.nodes.items() if node.owner == session]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def sequence_suffix(number: int) -> str:
    """Ten digits of a 32-bit number: after 2147483647 follows -2147483648."""
    return f"{(number + 2**31) % 2**32 - 2**31:010d}"
