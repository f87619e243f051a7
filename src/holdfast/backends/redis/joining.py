"""Several locks in one script: which of them can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.backends.redis.keys import keys_of

if TYPE_CHECKING:
    from holdfast.backends.redis.port import RedisPort
    from holdfast.core.tickets import Ticket

TOGETHER_MAX = 500  # locks in one script: it holds up everybody else on the server for a few milliseconds


def together(port: RedisPort, prefix: str, tickets: Sequence[Ticket]) -> Iterator[list[Ticket]]:
    """The tickets in their order, in parts that one script can have."""
    part: list[Ticket] = []
    for ticket in tickets:
        keys = keys_of(prefix, ticket.name)
        if part and (len(part) == TOGETHER_MAX or not port.are_together(keys_of(prefix, part[0].name), keys)):
            yield part
            part = []
        part.append(ticket)
    if part:
        yield part
