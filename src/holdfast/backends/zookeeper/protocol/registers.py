"""Registers in ZooKeeper: each is a node, `%marks/<name>`, with its number, the writer's nonce and how long to keep it.

A register is written only if its version is the one that was read, so of two clients that advance it to the same number
one is refused. kept_nodes.py deletes old ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.zookeeper.port import (
    Check,
    CreatePersistent,
    Get,
    Node,
    Refusal,
    Session,
    Set,
    Transaction,
)
from holdfast.backends.zookeeper.protocol.kept_nodes import KEEP_MAX, KeptNodes, version_of
from holdfast.backends.zookeeper.protocol.nodes import escaped
from holdfast.backends.zookeeper.protocol.parents import ATTEMPTS_MAX
from holdfast.errors import BackendUnavailable, NameConflict

_WRITTEN = re.compile(rb"(\d{1,19})\n([^\n]*)(?:\n(\d{1,15}))?")


class _Register(NamedTuple):
    number: int
    nonce: str
    keep: float  # seconds after the last write, by the leader's clock


class Registers(KeptNodes):
    """The registers below the root of the URL."""

    reap_every = 64
    batch_max = 64  # other requests wait for it, and the servers close a connection that sends over 1 MB

    async def advance(
        self, session: Session, name: str, number: int, *, nonce: str, keep: float, deadline: float
    ) -> bool:
        """See core/ports.py: `advance_register`."""
        path = self._path(name)
        # The parent first: then its version reveals every deletion since the register was read.
        reads = (Get(self._top), Get(path))
        parent, node = await self._port.call(session, reads, deadline=deadline)
        for _ in range(ATTEMPTS_MAX):
            while isinstance(node, Node):
                # A server that lags behind returns a lower number with an older version: the write is refused, and the
                # reads that follow it are up to date.
                known = _register(name, node)
                if known.number >= number:
                    return (known.number, known.nonce) == (number, nonce)
                # The previous number has to be kept for its own time too.
                data = _written(_Register(number, nonce, max(keep, known.keep)))
                write = Transaction((Check(self._top, version_of(parent)), Set(path, data, node.version)))
                answer, parent, node = await self._port.call(session, (write, *reads), deadline=deadline)
                if answer is None:
                    return True
                if answer not in (Refusal.CHANGED, Refusal.NO_NODE):
                    raise self._parents.error_for(answer, path)
            # The parent is no container, because the count of deletions would start again with a new one.
            parents = self._parents.ancestor_create_requests(path)
            create = CreatePersistent(path, _written(_Register(number, nonce, keep)))
            *answers, answer, parent, node = await self._port.call(
                session, (*parents, create, *reads), deadline=deadline
            )
            if answer is None:
                self._parents.add_known(self._top)
                if isinstance(node, Node) and self._should_reap():
                    await self._reap(session, self._top, node.mtime, version_of(parent), deadline)
                return True
            if answer is Refusal.NO_NODE:
                self._parents.handle_missing(self._top, answers)
            elif answer is not Refusal.EXISTS:
                raise self._parents.error_for(answer, path)
        raise BackendUnavailable(backend=self._url, problem=f"{path} was deleted as often as it was created")

    async def read(self, session: Session, names: Sequence[str], deadline: float) -> list[int]:
        """See core/ports.py: `read_registers`."""
        requests = [Get(self._path(name)) for name in names]
        answers = await self._port.call(session, requests, deadline=deadline) if requests else []
        numbers: list[int] = []
        for name, request, answer in zip(names, requests, answers, strict=True):
            if isinstance(answer, Node):
                numbers.append(_register(name, answer).number)
            elif answer is Refusal.NO_NODE:
                numbers.append(0)
            else:
                raise self._parents.error_for(answer, request.path)
        return numbers

    def _is_old(self, node: Node, now: float) -> bool:
        register = _read(node)
        return register is not None and node.mtime + register.keep < now

    def _path(self, name: str) -> str:
        return f"{self._top}/{escaped(name)}"


def _written(register: _Register) -> bytes:
    keep_ms = math.ceil(min(register.keep, KEEP_MAX) * 1000)
    return f"{register.number}\n{register.nonce}\n{keep_ms}".encode()


def _read(node: Node) -> _Register | None:
    """None: it is no register."""
    parts = _WRITTEN.fullmatch(node.data)
    if parts is None:
        return None
    number, nonce, keep_ms = parts.groups()
    keep = KEEP_MAX if keep_ms is None else int(keep_ms) / 1000  # without a time it is kept
    return _Register(int(number), nonce.decode("ascii", "replace"), keep)


def _register(name: str, node: Node) -> _Register:
    register = _read(node)
    if register is None:
        raise NameConflict(lock=name, reason="its node among the registers holds other data")
    return register
