"""Records in ZooKeeper: each is a node, `%marks/%records/<two digits>/<name>`; the digits are of a hash of the name.

Its data are the nonce, for how many milliseconds it is kept after it was written, and the payload, each on a line; or
nothing, for a record that was removed. A record is written only if its version is the one that was read. An older
holdfast does not list nodes below `%marks` as locks, and does not delete these.

Only the leader's clock decides whether a record has expired. A client reads it by a write to the node `%marks/%clock`,
in the same round trip as the record. The write also makes the client's own server apply everything before it.
"""

from __future__ import annotations

import hashlib
import math
import re

from holdfast.backends.zookeeper.port import (
    Answer,
    Check,
    CreateParent,
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
from holdfast.core.ports import Record
from holdfast.errors import BackendUnavailable, NameConflict

ATTEMPTS_MAX = 20  # writes of a record, while other clients delete old ones with the same digits
_REMOVED = b""
_WRITTEN = re.compile(rb"([^\n]+)\n(\d{1,15})\n(.*)", re.DOTALL)


class Records(KeptNodes):
    """The records below the root of the URL."""

    reap_every = 16
    batch_max = 8  # each can have 80 KiB

    async def swap(
        self, session: Session, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        """See core/ports.py: `swap_record`."""
        parent = self._parent(name)
        path = f"{parent}/{escaped(name)}"
        data = _REMOVED if record is None else _encoded(record, keep)
        *answers, clock, siblings, node = await self._read(session, parent, path, (), deadline)
        for _ in range(ATTEMPTS_MAX):
            stored = self._stored(name, path, clock, node)
            if (stored.nonce if stored else "") != expected or (record is None and stored is None):
                return stored
            if isinstance(node, Node):
                write = Transaction((Check(parent, version_of(siblings)), Set(path, data, node.version)))
                *answers, clock, siblings, node = await self._read(session, parent, path, (write,), deadline)
                if answers[-1] is None:
                    return record
            else:
                creates = self._parents.ancestor_create_requests(path)
                create = CreatePersistent(path, data)
                *answers, clock, siblings, node = await self._read(session, parent, path, (*creates, create), deadline)
                if answers[-1] is None:
                    self._parents.add_known(parent)
                    if isinstance(clock, Node) and self._should_reap():
                        await self._reap(session, parent, clock.mtime, version_of(siblings), deadline)
                    return record
                if answers[-1] is Refusal.NO_NODE:
                    self._parents.handle_missing(parent, answers[:-1])
            if answers[-1] not in (Refusal.NO_NODE, Refusal.EXISTS, Refusal.CHANGED):
                raise self._parents.error_for(answers[-1], path)
        raise BackendUnavailable(backend=self._url, problem=f"{path} was changed as often as it was read")

    async def _read(
        self,
        session: Session,
        parent: str,
        path: str,
        writes: tuple[CreateParent | CreatePersistent | Transaction, ...],
        deadline: float,
    ) -> list[Answer]:
        """Execute the writes, then read the leader's clock, the parent and the record, which are the last answers.

        The parent is read before the record, so that its version reveals every deletion since the record was read.
        """
        clock_path = f"{self._top}/%clock"
        reads = (Set(clock_path, b""), Get(clock_path), Get(parent), Get(path))
        *answers, ticked, time, siblings, node = await self._port.call(session, (*writes, *reads), deadline=deadline)
        if ticked is Refusal.NO_NODE and isinstance(node, Node):
            create = CreateParent(clock_path, is_container=False)
            _, ticked, time, siblings, node = await self._port.call(session, (create, *reads), deadline=deadline)
        if ticked is not None and ticked is not Refusal.NO_NODE:
            raise self._parents.error_for(ticked, clock_path)
        return [*answers, time, siblings, node]

    def _stored(self, name: str, path: str, clock: Answer, node: Answer) -> Record | None:
        """The record that exists."""
        if node is Refusal.NO_NODE:
            return None
        if not isinstance(node, Node) or not isinstance(clock, Node):
            raise self._parents.error_for(clock if isinstance(node, Node) else node, path)
        if self._is_old(node, clock.mtime):
            return None
        parts = _WRITTEN.fullmatch(node.data)
        if parts is None:
            raise NameConflict(lock=name, reason="its node among the records holds other data")
        return Record(parts[1].decode("ascii", "replace"), parts[3].decode("utf-8", "replace"))

    def _is_old(self, node: Node, now: float) -> bool:
        parts = _WRITTEN.fullmatch(node.data)
        return node.data == _REMOVED if parts is None else node.mtime + int(parts[2]) / 1000 <= now

    def _parent(self, name: str) -> str:
        # 256 parents, so that a search for old records does not list all of them.
        return f"{self._top}/%records/{hashlib.sha256(name.encode()).hexdigest()[:2]}"


def _encoded(record: Record, keep: float) -> bytes:
    return f"{record.nonce}\n{math.ceil(min(keep, KEEP_MAX) * 1000)}\n{record.payload}".encode()
