"""Registers in etcd: each is a key, `<prefix>%mark/<name>`, with the number and the nonce of its writer.

A register is written only if its mod revision is the one that was read, so of two clients that advance it to the same
number one is refused. Its etcd lease is neither kept alive nor revoked: the register outlives the client, and ends by
itself. A lease is granted for twice as long as a register has to be kept, so that it also serves later registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.backends.etcd.port import EtcdPort, LeaseNotFound, Message
from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.keys import Keys
from holdfast.backends.etcd.protocol.leases import Lease, grant
from holdfast.backends.etcd.protocol.messages import get, kvs, modified_at, put, succeeded, txn
from holdfast.core.ports import Runtime
from holdfast.errors import NameConflict

READS_MAX = 100  # in one transaction
TTL_MAX = 9_000_000_000  # seconds: etcd refuses more
LEASES_MAX = 100  # that a client remembers


class Register(NamedTuple):
    """A register as it was read."""

    number: int = 0
    nonce: str = ""
    revision: int = 0  # mod revision of its key; 0: it does not exist


class KeepingLeases:
    """The leases of one client under which keys outlive it. They are neither kept alive nor revoked.

    A lease is granted for longer than requested, by `spare` seconds, so that it also serves later keys.
    """

    def __init__(self, port: EtcdPort, runtime: Runtime, spare: Callable[[int], int]) -> None:
        self._port, self._runtime, self._spare = port, runtime, spare
        self._latest: dict[int, Lease] = {}  # by the seconds for which keys are kept

    async def lease_for(self, keep: float, deadline: float) -> Lease:
        """A lease that lives for at least `keep` seconds after any request that is executed before the deadline."""
        seconds = max(1, math.ceil(min(keep, TTL_MAX)))
        lease = self._latest.get(seconds)
        if lease is not None and not lease.has_expired and lease.deadline >= deadline + keep:
            return lease
        wait = math.ceil(max(0.0, deadline - self._runtime.now()))
        ttl = min(TTL_MAX, seconds + self._spare(seconds) + wait)
        lease = await grant(self._port, ttl, ttl, deadline)
        if len(self._latest) >= LEASES_MAX:
            self._latest.clear()
        self._latest[seconds] = lease
        return lease


class Registers:
    """The registers of one client; a part of its backend."""

    _port: CheckedPort
    _keys: Keys
    _register_leases: KeepingLeases

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        key = self._keys.register(name)
        # Most calls find a higher number, and need no lease.
        answer = await self._port.call("kv/txn", txn([], [get(key)]), deadline=deadline)
        register = _parse(name, answer.message, 0)
        while register.number < number:
            lease = await self._register_leases.lease_for(keep, deadline)
            write = put(key, f"{number} {nonce}".encode(), lease.id)
            request = txn([modified_at(key, register.revision)], [write], [get(key)])
            try:
                answer = await self._port.call("kv/txn", request, deadline=deadline)
            except LeaseNotFound:  # it was revoked
                lease.has_expired = True
                continue
            if succeeded(answer.message):
                return True
            register = _parse(name, answer.message, 0)
        return (register.number, register.nonce) == (number, nonce)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        numbers: list[int] = []
        for start in range(0, len(names), READS_MAX):
            chunk = names[start : start + READS_MAX]
            request = txn([], [get(self._keys.register(name)) for name in chunk])
            answer = await self._port.call("kv/txn", request, deadline=deadline)
            numbers += [_parse(name, answer.message, number).number for number, name in enumerate(chunk)]
        return numbers


def _parse(name: str, answer: Message, index: int) -> Register:
    stored = kvs(answer, index)
    if not stored:
        return Register()
    number, _, nonce = stored[0].value.decode("ascii", "replace").partition(" ")
    if not number.isdigit():
        raise NameConflict(lock=name, reason=f"etcd's key {stored[0].key.decode()!r} is no register")
    return Register(int(number), nonce, stored[0].modified)
