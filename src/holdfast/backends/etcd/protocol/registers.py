"""Marks in etcd: for each a key of its own, `<prefix>%mark/<name>`, with the number and the nonce of who raised it.

It is written only if it is still as it was seen, by its mod revision; so of two who raise it to the same number one is
refused. It stands under an etcd lease that nobody keeps alive and that nobody gives back: the mark outlives the client,
and goes by itself. A lease is granted for twice as long as a mark has to be kept, to serve the marks of that time too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.etcd.port import LeaseNotFound
from holdfast.backends.etcd.protocol.leases import Lease
from holdfast.backends.etcd.protocol.messages import get, kvs, modified_at, put, succeeded, txn
from holdfast.errors import NameConflict

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort, Message
    from holdfast.backends.etcd.protocol.keys import Keys
    from holdfast.core.ports import Runtime

READS_MAX = 100  # in one transaction
TTL_MAX = 9_000_000_000  # seconds: etcd refuses more


class Register(NamedTuple):
    """A mark as it was found."""

    number: int = 0
    nonce: str = ""
    revision: int = 0  # of its key; 0: there is none


class Registers:
    """Those of one client, whatever the method of its locks."""

    def __init__(self, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        self._port, self._runtime, self._keys = port, runtime, keys
        self._leases: dict[int, Lease] = {}  # the latest, by how many seconds marks are to be kept

    async def advance(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        """See ports.py: `register`."""
        key = self._keys.register(name)
        # Most who ask come too late, and need no lease for that.
        answer = await self._port.call("kv/txn", txn([], [get(key)]), deadline=deadline)
        found = _parse(name, answer.message, 0)
        while found.number < number:
            lease = await self._lease_for(keep, deadline)
            write = put(key, f"{number} {nonce}".encode(), lease.id)
            request = txn([modified_at(key, found.revision)], [write], [get(key)])
            try:
                answer = await self._port.call("kv/txn", request, deadline=deadline)
            except LeaseNotFound:  # somebody revoked it
                lease.has_expired = True
                continue
            if succeeded(answer.message):
                return True
            found = _parse(name, answer.message, 0)
        return (found.number, found.nonce) == (number, nonce)

    async def read(self, names: Sequence[str], deadline: float) -> list[int]:
        """See ports.py: `read_registers`."""
        numbers: list[int] = []
        for start in range(0, len(names), READS_MAX):
            some = names[start : start + READS_MAX]
            request = txn([], [get(self._keys.register(name)) for name in some])
            answer = await self._port.call("kv/txn", request, deadline=deadline)
            numbers += [_parse(name, answer.message, number).number for number, name in enumerate(some)]
        return numbers

    async def _lease_for(self, keep: float, deadline: float) -> Lease:
        """A lease that lives for `keep` seconds at least from whenever what is asked until the deadline is done."""
        seconds = max(1, math.ceil(keep))
        lease = self._leases.get(seconds)
        if lease is not None and not lease.has_expired and lease.deadline >= deadline + keep:
            return lease
        asked = min(TTL_MAX, 2 * seconds + math.ceil(max(0.0, deadline - self._runtime.now())))
        answer = await self._port.call("lease/grant", {"TTL": str(asked)}, deadline=deadline)
        lease = self._leases[seconds] = Lease(int(answer.message["ID"]), asked)
        lease.renewed(int(answer.message["TTL"]), answer.sent)
        return lease


def _parse(name: str, answer: Message, index: int) -> Register:
    there = kvs(answer, index)
    if not there:
        return Register()
    number, _, nonce = there[0].value.decode("ascii", "replace").partition(" ")
    if not number.isdigit():
        raise NameConflict(lock=name, reason=f"etcd's key {there[0].key.decode()!r} holds something else than a mark")
    return Register(int(number), nonce, there[0].modified)
