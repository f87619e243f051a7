"""The port: connections and the listener of one client, together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.postgresql.gates import Gates
from holdfast.backends.postgresql.lines import Lines
from holdfast.backends.postgresql.listening import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.backends.eyes import Background, Eyes
    from holdfast.backends.postgresql.address import Place
    from holdfast.backends.postgresql.port import Gate, Row, Statement, Value
    from holdfast.core.ports import Runtime


class Database:
    """One database, as port.py has it."""

    def __init__(self, place: Place, eyes: Eyes, background: Background, runtime: Runtime) -> None:
        self._lines = Lines(place, eyes, runtime)
        self._listener = Listener(place.url, self._lines, eyes, background, runtime)
        self._gates = Gates(self._lines, runtime)
        self.channel = self._lines.channel

    @property
    def is_durable(self) -> bool:
        return self._lines.is_durable

    @property
    def troubles(self) -> tuple[str, ...]:
        return self._lines.troubles

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        return await self._lines.ask(statement, values, deadline)

    async def create_tables(self, *, deadline: float) -> None:
        await self._lines.create_tables(deadline)

    async def gate(self, *, deadline: float) -> Gate:
        return await self._gates.open(deadline)

    def give_back(self, gate: Gate) -> None:
        self._gates.give_back(gate)

    def hearing(self, channel: str) -> int:
        return self._listener.hearing()

    async def attend(self, channel: str, nonce: str, *, deadline: float) -> None:
        await self._listener.attend(nonce, deadline)

    def dismiss(self, channel: str, nonce: str) -> None:
        self._listener.dismiss(nonce)

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._listener.listen(wake, missed)

    async def close(self) -> None:
        await self._listener.close()
        self._gates.close()
        self._lines.close()

    def abandon(self) -> None:
        self._listener.abandon()
        self._lines.abandon()
