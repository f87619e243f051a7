"""The value of a ticket's key: process, agent and time, written for operators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.backends.etcd.protocol.keys import QueueEntry
from holdfast.backends.etcd.protocol.messages import KeyValue
from holdfast.core.tickets import Claim, TicketInfo, make_ticket_info, process_text

METHOD_KEY = "key"


class TicketValue(NamedTuple):
    """The parsed value of a key."""

    is_ours: bool
    method: str
    agent: str
    since: float
    info: str
    nonce: str = ""


def encode_value(claim: Claim, since: float, method: str = "") -> bytes:
    extra = f'"method":"{method}",' if method else ""
    ticket_fields = f'"nonce":"{claim.nonce}","since":{since:.6f},"agent":{json.dumps(claim.agent)}'
    return f'{{"holdfast":1,{extra}{ticket_fields},"info":{claim.info}}}'.encode()


def parse_value(value: bytes) -> TicketValue:
    try:
        fields: Any = json.loads(value)
        if fields["holdfast"] == 1:
            return TicketValue(
                is_ours=True,
                method=str(fields.get("method", "")),
                agent=str(fields["agent"]),
                since=float(fields["since"]),
                info=json.dumps(fields["info"]),
                nonce=str(fields.get("nonce", "")),
            )
    except (ValueError, KeyError, TypeError):
        pass
    return TicketValue(is_ours=False, method="", agent="another program", since=0.0, info="")


def holder_of(tickets: Sequence[KeyValue]) -> str | None:
    """The process of the first ticket, for messages."""
    if not tickets:
        return None
    value = parse_value(tickets[0].value)
    return process_text(value.info) if value.is_ours else "another program"


def ticket_info(kv: KeyValue, entry: QueueEntry, remaining: float, *, granted: bool) -> TicketInfo:
    value = parse_value(kv.value)
    return make_ticket_info(
        info=value.info,
        fence=kv.created if granted else None,
        agent=value.agent,
        since=value.since,
        remaining=remaining,
        exclusive=entry.exclusive,
        limit=entry.limit,
    )
