"""Marks: a number for each name, which never goes down. The same for all methods: no lease has to do with it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.mysql.protocol.statements import ADVANCE_REGISTER, INSERTED, READ_REGISTERS, REAP_REGISTERS
from holdfast.backends.mysql.protocol.values import lock_id
from holdfast.backends.mysql.sql import REAP_EVERY, REAP_ROWS
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort
    from holdfast.core.ports import Runtime

KEEP_MAX = 100 * 366 * 86400.0  # seconds: as good as for ever, and less than the column has room for


class Registers:
    """Mixed into a backend that has a port."""

    _port: MysqlPort
    _runtime: Runtime

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        kept = round(min(keep, KEEP_MAX) * 1e6)
        answer = await self._port.execute(
            ADVANCE_REGISTER, (lock_id(name), name, number, nonce, kept), deadline=deadline
        )
        if answer.changed == INSERTED and self._runtime.jitter() < 1 / REAP_EVERY:
            with contextlib.suppress(BackendError):  # somebody else will, some other time
                await self._port.execute(REAP_REGISTERS, (REAP_ROWS,), deadline=deadline)
        return bool(answer.number)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        if not names:
            return []
        rows = (await self._port.execute(READ_REGISTERS, (tuple(map(lock_id, names)),), deadline=deadline)).rows
        found = {bytes.fromhex(key or ""): int(number or 0) for key, number in rows}
        return [found.get(lock_id(name), 0) for name in names]
