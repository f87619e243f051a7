"""What a store offers that has no better way: several locks one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.core.tickets import Granted, Ticket, Waiting


class _Enters(Protocol):
    async def enter(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting: ...


class OneByOne:
    """Mixed into a backend whose store takes one lock in one step."""

    async def enter_all(self: _Enters, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        return [await self.enter(tickets[0], queue=False, deadline=deadline)]
