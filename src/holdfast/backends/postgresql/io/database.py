"""The port: connections and the listener of one client, together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.postgresql.io.connections import Lines
from holdfast.backends.postgresql.io.subscriber import Listener
from holdfast.backends.postgresql.io.waiter_sessions import Gates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.backends.net.poller import Background, Poller
    from holdfast.backends.postgresql.config import Place
    from holdfast.backends.postgresql.port import Gate, Row, Statement, Value
    from holdfast.core.ports import Runtime


class Database:
    """One database, as port.py has it."""

    def __init__(self, place: Place, poller: Poller, background: Background, runtime: Runtime) -> None:
        self._lines = Lines(place, poller, runtime)
        self._listener = Listener(place.url, self._lines, poller, background, runtime)
        self._gates = Gates(self._lines, runtime)
        self.channel = self._lines.channel

    @property
    def is_durable(self) -> bool:
        return self._lines.is_durable

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._lines.warnings

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        return await self._lines.ask(statement, values, deadline)

    async def create_tables(self, *, deadline: float) -> None:
        await self._lines.create_tables(deadline)

    async def gate(self, *, deadline: float) -> Gate:
        return await self._gates.open(deadline)

    def give_back(self, gate: Gate) -> None:
        self._gates.give_back(gate)

    def subscription(self, channel: str) -> int:
        return self._listener.subscription()

    async def subscribe(self, channel: str, nonce: str, *, deadline: float) -> None:
        await self._listener.subscribe(nonce, deadline)

    def unsubscribe(self, channel: str, nonce: str) -> None:
        self._listener.unsubscribe(nonce)

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._listener.listen(wake, missed)

    async def close(self) -> None:
        await self._listener.close()
        self._gates.close()
        self._lines.close()

    def abandon(self) -> None:
        self._listener.abandon()
        self._lines.abandon()
