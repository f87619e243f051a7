"""Records in etcd: each is a key, `<prefix>%mark/%record/<name>`, with its nonce, a newline and the payload.

A record is written only if its mod revision is the one that was read, so of two clients that replace it one is refused.
It ends with its etcd lease, as a register does.
"""

from __future__ import annotations

from holdfast.backends.etcd.port import LeaseNotFound, Message
from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.keys import Keys
from holdfast.backends.etcd.protocol.messages import delete, get, kvs, modified_at, put, succeeded, txn
from holdfast.backends.etcd.protocol.registers import KeepingLeases
from holdfast.core.ports import Record
from holdfast.errors import NameConflict

SPARE_MAX = 60  # seconds by which a record may be kept too long, so that its lease serves later records too


class Records:
    """The records of one client; a part of its backend."""

    _port: CheckedPort
    _keys: Keys
    _record_leases: KeepingLeases

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        key = self._keys.record(name)
        stored: Record | None = None
        revision = 0
        if expected or record is None:  # otherwise the write succeeds only if no record exists: no read is needed
            answer = await self._port.call("kv/txn", txn([], [get(key)]), deadline=deadline)
            stored, revision = _parse(name, answer.message)
        while (stored.nonce if stored else "") == expected:
            if record is None and stored is None:
                return None
            lease = None if record is None else await self._record_leases.lease_for(keep, deadline)
            write = delete(key) if lease is None or record is None else put(key, _encoded(record), lease.id)
            request = txn([modified_at(key, revision)], [write], [get(key)])
            try:
                answer = await self._port.call("kv/txn", request, deadline=deadline)
            except LeaseNotFound:  # it was revoked
                if lease is not None:
                    lease.has_expired = True
                continue
            if succeeded(answer.message):
                return record
            stored, revision = _parse(name, answer.message)
        return stored


def _encoded(record: Record) -> bytes:
    return f"{record.nonce}\n{record.payload}".encode()


def _parse(name: str, answer: Message) -> tuple[Record | None, int]:
    """The record that a transaction has read, and the mod revision of its key; 0: it does not exist."""
    for kv in kvs(answer, 0):
        nonce, newline, payload = kv.value.partition(b"\n")
        try:
            if newline:
                return Record(nonce.decode(), payload.decode()), kv.modified
        except UnicodeDecodeError:
            pass
        raise NameConflict(lock=name, reason=f"etcd's key {kv.key.decode()!r} is no record")
    return None, 0
