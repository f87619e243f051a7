"""Connections that wait at a gate, one for each ticket: those of method=advisory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.net.pool import pop
from holdfast.errors import OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.postgresql.io.connection import Wire
    from holdfast.backends.postgresql.io.connections import Lines
    from holdfast.backends.postgresql.port import Gate, Row, Statement, Value
    from holdfast.core.ports import Runtime

IDLE_MAX = 4  # connections that are kept for the next who comes
# Who waits may wait for long; and the server shall notice by itself, while it waits, that a client has died.
_SETTINGS = """SET statement_timeout = 0; SET lock_timeout = 0;
SELECT set_config(name, '1s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'"""


class Gates:
    """Those of one client."""

    def __init__(self, lines: Lines, runtime: Runtime) -> None:
        self._lines, self._runtime = lines, runtime
        self._idle: list[Gate] = []
        self._closed = False

    async def open(self, deadline: float) -> Gate:
        while (gate := pop(self._idle)) is not None:
            if gate.is_open:
                return gate
        wire = await self._lines.open(deadline)
        try:
            await wire.say(_SETTINGS, deadline)
        except BaseException:
            wire.close()
            raise
        return GateWire(wire, self._lines, self)

    def give_back(self, gate: Gate) -> None:
        if self._closed or gate.is_in or gate.is_asking or len(self._idle) >= IDLE_MAX:
            gate.close()
        else:
            self._idle.append(gate)

    def close(self) -> None:
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        while (gate := pop(self._idle)) is not None:
            gate.close()


class GateWire:
    """One of them."""

    def __init__(self, wire: Wire, lines: Lines, gates: Gates) -> None:
        self._wire, self._lines, self._gates = wire, lines, gates
        self._is_in = False

    @property
    def is_open(self) -> bool:
        return (self._wire.is_asking and self._wire.pgconn is not None) or not self._wire.is_dead()

    @property
    def is_in(self) -> bool:
        return self._is_in and self.is_open

    @is_in.setter
    def is_in(self, is_in: bool) -> None:
        self._is_in = is_in

    @property
    def is_asking(self) -> bool:
        return self._wire.is_asking

    @property
    def pid(self) -> int:
        return self._wire.pid

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        try:
            return await self._lines.ask_on(self._wire, statement, values, deadline)
        except OutcomeUnknown:
            self._gates.close_idle()  # connections that are idle may have vanished with this one
            raise

    async def wait(self, sql: str, until: float) -> None:
        self._is_in = await self._wire.ask_long(sql, until)

    def close(self) -> None:
        self._wire.close()
