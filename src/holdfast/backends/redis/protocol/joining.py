"""Several locks in one script: which of them can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from holdfast.backends.redis.protocol.keys import Keys, keys_of

if TYPE_CHECKING:
    from holdfast.backends.redis.port import RedisPort
    from holdfast.core.tickets import Ticket

SCRIPT_LOCKS_MAX = 500  # locks in one script: it holds up everybody else on the server for a few milliseconds


def keys_for_one_script(port: RedisPort, prefix: str, tickets: Sequence[Ticket]) -> list[Keys]:
    """The keys of the first tickets, of as many as one script can have."""
    locks = [keys_of(prefix, ticket.name) for ticket in tickets[:SCRIPT_LOCKS_MAX]]
    return list(takewhile(lambda keys: port.may_share_script(locks[0], keys), locks))
