"""Marks in ZooKeeper: for each a node that stays, `%marks/<name>`, with the number and the nonce of who raised it.

It is written only if it is still as it was seen, by its version; so of two who raise it to the same number one is
refused. Nothing takes it away: nodes that the servers remove after a time are not to be had everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.zookeeper import nodes
from holdfast.backends.zookeeper.nodes import MARKS
from holdfast.backends.zookeeper.parents import ATTEMPTS_MAX
from holdfast.backends.zookeeper.port import CreateLasting, Get, Node, Refusal, Set
from holdfast.errors import BackendUnavailable, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.parents import Parents
    from holdfast.backends.zookeeper.port import Session, ZookeeperPort


class Marks:
    """Those below one node."""

    def __init__(self, url: str, root: str, port: ZookeeperPort, parents: Parents) -> None:
        self._url, self._port, self._parents = url, port, parents
        self._above = f"{root}/{MARKS}"

    async def raise_to(self, session: Session, name: str, number: int, nonce: str, deadline: float) -> bool:
        """See core/ports.py: `mark`."""
        path, data = self._path(name), f"{number}\n{nonce}".encode()
        (there,) = await self._port.ask(session, (Get(path),), deadline=deadline)
        for _ in range(ATTEMPTS_MAX):
            while isinstance(there, Node):
                # A server that lags behind shows one that was lower, and has another version: writing it is refused,
                # and what is read behind that is up to date.
                known = _read(name, there)
                if known[0] >= number:
                    return known == (number, nonce)
                write = Set(path, data, there.version)
                answer, there = await self._port.ask(session, (write, Get(path)), deadline=deadline)
                if answer is None:
                    return True
                if answer not in (Refusal.CHANGED, Refusal.NO_NODE):
                    raise self._parents.refused(answer, path)
            parents, create = self._parents.missing(self._above), CreateLasting(path, data)
            *answers, answer, there = await self._port.ask(session, (*parents, create, Get(path)), deadline=deadline)
            if answer is None:
                self._parents.note(self._above)
                return True
            if answer is Refusal.NO_NODE:
                self._parents.missed(self._above, answers)
            elif answer is not Refusal.EXISTS:
                raise self._parents.refused(answer, path)
        raise BackendUnavailable(backend=self._url, problem=f"{path} was taken away as often as it was made")

    async def all(self, session: Session, names: Sequence[str], deadline: float) -> list[int]:
        """See core/ports.py: `marks`."""
        requests = [Get(self._path(name)) for name in names]
        answers = await self._port.ask(session, requests, deadline=deadline) if requests else []
        numbers: list[int] = []
        for name, request, answer in zip(names, requests, answers, strict=True):
            if not isinstance(answer, Node) and answer is not Refusal.NO_NODE:
                raise self._parents.refused(answer, request.path)
            numbers.append(_read(name, answer)[0] if isinstance(answer, Node) else 0)
        return numbers

    def _path(self, name: str) -> str:
        return f"{self._above}/{nodes.escaped(name)}"


def _read(name: str, node: Node) -> tuple[int, str]:
    number, _, nonce = node.data.decode("ascii", "replace").partition("\n")
    if not number.isdigit():
        raise NameConflict(lock=name, reason="its node among the marks holds something else")
    return int(number), nonce
