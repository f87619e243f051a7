"""Marks in ZooKeeper: for each a node, `%marks/<name>`: its number, the nonce of who raised it, and how long it stays.

A mark is written only if it is still as it was seen, by its version; so of two who raise it to the same number one is
refused. Nodes that the servers remove after a time are not to be had everywhere, so whoever makes a mark now and then
takes away old ones. By versions alone that would go wrong, for a node that is taken away and made anew begins with
version 0 again: who saw the one could write over the other. So the version of `%marks` counts how often marks were
taken away, in the same transaction, and who writes or takes away a mark has that checked as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.zookeeper.port import (
    Check,
    Children,
    CreatePersistent,
    Delete,
    Get,
    Node,
    Refusal,
    Set,
    Transaction,
)
from holdfast.backends.zookeeper.protocol import nodes
from holdfast.backends.zookeeper.protocol.nodes import REGISTERS
from holdfast.backends.zookeeper.protocol.parents import ATTEMPTS_MAX
from holdfast.core.events import logger
from holdfast.errors import BackendUnavailable, HoldfastError, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.port import Answer, Session, ZookeeperPort
    from holdfast.backends.zookeeper.protocol.parents import Parents
    from holdfast.core.ports import Runtime

REAP_EVERY = 64  # marks that are new, on average, until somebody looks for old ones
REAP_SAMPLE = 4 * REAP_EVERY  # of all, at one time: so in the long run no more than a quarter of those there is old
BATCH_MAX = 64  # in one round trip: others wait behind it, and the servers drop who sends more than a megabyte
KEEP_MAX = 100 * 366 * 86400.0  # seconds: as good as for ever

_WRITTEN = re.compile(rb"(\d{1,19})\n([^\n]*)(?:\n(\d{1,15}))?")


class _Register(NamedTuple):
    number: int
    nonce: str
    keep: float  # seconds since it was raised: both by the leader's clock


class Registers:
    """Those below one node."""

    def __init__(self, url: str, root: str, port: ZookeeperPort, runtime: Runtime, parents: Parents) -> None:
        self._url, self._port, self._runtime, self._parents = url, port, runtime, parents
        self._parent = f"{root}/{REGISTERS}"

    async def advance(
        self, session: Session, name: str, number: int, *, nonce: str, keep: float, deadline: float
    ) -> bool:
        """See core/ports.py: `advance_register`."""
        path = self._path(name)
        # In this order: what was taken away since the first look is noticed.
        look = (Get(self._parent), Get(path))
        parent, there = await self._port.call(session, look, deadline=deadline)
        for _ in range(ATTEMPTS_MAX):
            while isinstance(there, Node):
                # A server that lags behind shows one that was lower, and has another version: writing it is refused,
                # and what is read behind that is up to date.
                known = _read(there)
                if known is None:
                    raise _conflict(name)
                if known.number >= number:
                    return (known.number, known.nonce) == (number, nonce)
                # The number before must not come back either, before its own time is over.
                data = _written(_Register(number, nonce, max(keep, known.keep)))
                write = Transaction((Check(self._parent, _version(parent)), Set(path, data, there.version)))
                answer, parent, there = await self._port.call(session, (write, *look), deadline=deadline)
                if answer is None:
                    return True
                if answer not in (Refusal.CHANGED, Refusal.NO_NODE):
                    raise self._parents.error_for(answer, path)
            parents = self._parents.ancestor_creates(
                path
            )  # no container: what it counts would begin anew with the next one
            create = CreatePersistent(path, _written(_Register(number, nonce, keep)))
            *answers, answer, parent, there = await self._port.call(
                session, (*parents, create, *look), deadline=deadline
            )
            if answer is None:
                self._parents.add_known(self._parent)
                if isinstance(there, Node) and self._should_reap():
                    await self._reap(session, there.mtime, _version(parent), deadline)
                return True
            if answer is Refusal.NO_NODE:
                self._parents.handle_missing(self._parent, answers)
            elif answer is not Refusal.EXISTS:
                raise self._parents.error_for(answer, path)
        raise BackendUnavailable(backend=self._url, problem=f"{path} was taken away as often as it was made")

    async def read(self, session: Session, names: Sequence[str], deadline: float) -> list[int]:
        """See core/ports.py: `read_registers`."""
        requests = [Get(self._path(name)) for name in names]
        answers = await self._port.call(session, requests, deadline=deadline) if requests else []
        numbers: list[int] = []
        for name, request, answer in zip(names, requests, answers, strict=True):
            if answer is Refusal.NO_NODE:
                numbers.append(0)
                continue
            if not isinstance(answer, Node):
                raise self._parents.error_for(answer, request.path)
            known = _read(answer)
            if known is None:
                raise _conflict(name)
            numbers.append(known.number)
        return numbers

    def _should_reap(self) -> bool:
        return self._runtime.jitter() < 1 / REAP_EVERY

    async def _reap(self, session: Session, now: float, version: int, deadline: float) -> None:
        """Take away marks whose time is over, of some: `now` by the leader's clock, and `version` that of `%marks`."""
        try:
            paths = await self._sample(session, deadline)
            for first in range(0, len(paths), BATCH_MAX):
                some = paths[first : first + BATCH_MAX]
                found = await self._port.call(session, [Get(path) for path in some], deadline=deadline)
                over = [
                    Delete(path, node.version)
                    for path, node in zip(some, found, strict=True)
                    if isinstance(node, Node)
                    and (register := _read(node)) is not None
                    and node.mtime + register.keep < now
                ]
                if not over:
                    continue
                transaction = Transaction((Set(self._parent, b"", version), *over))
                (answer,) = await self._port.call(session, (transaction,), deadline=deadline)
                if answer is not None:
                    return  # one was raised, or others take marks away; there will be other times
                version += 1  # only now: else it might be what somebody else has counted
        except HoldfastError as error:
            logger().info("old marks in %s stay for now: %s", self._url, error)  # the mark is made, whatever this is

    async def _sample(self, session: Session, deadline: float) -> list[str]:
        """The paths of so many marks that one may look at them, beginning anywhere."""
        (names,) = await self._port.call(session, (Children(self._parent),), deadline=deadline)
        if not isinstance(names, list):
            raise self._parents.error_for(names, self._parent)
        first = int(self._runtime.jitter() * len(names))
        some = [names[index % len(names)] for index in range(first, first + min(REAP_SAMPLE, len(names)))]
        return [f"{self._parent}/{name}" for name in some]

    def _path(self, name: str) -> str:
        return f"{self._parent}/{nodes.escaped(name)}"


def _version(parent: Answer) -> int:
    """Of the node that marks stand below. Had it not been there, it is new, and so is all below it."""
    return parent.version if isinstance(parent, Node) else 0


def _written(register: _Register) -> bytes:
    keep_ms = math.ceil(min(register.keep, KEEP_MAX) * 1000)
    return f"{register.number}\n{register.nonce}\n{keep_ms}".encode()


def _read(node: Node) -> _Register | None:
    """None: it is no mark."""
    parts = _WRITTEN.fullmatch(node.data)
    if parts is None:
        return None
    number, nonce, keep_ms = parts.groups()
    keep = KEEP_MAX if keep_ms is None else int(keep_ms) / 1000  # where nobody has said how long, it stays
    return _Register(int(number), nonce.decode("ascii", "replace"), keep)


def _conflict(name: str) -> NameConflict:
    return NameConflict(lock=name, reason="its node among the marks holds something else")
