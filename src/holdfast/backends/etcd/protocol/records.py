"""What is written into a ticket's key, and what can be read of it: who it is, for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.backends.etcd.protocol.keys import QueueEntry, parse_key
from holdfast.core.tickets import Ticket, TicketInfo, make_ticket_info, process_text

if TYPE_CHECKING:
    from holdfast.backends.etcd.protocol.messages import KeyValue

METHOD_KEY = "key"


class Record(NamedTuple):
    """The value of a key; of foreign ones, what there is."""

    is_ours: bool
    method: str
    agent: str
    since: float
    info: str
    nonce: str = ""


def encode_record(ticket: Ticket, since: float, method: str = "") -> bytes:
    extra = f'"method":"{method}",' if method else ""
    who_and_when = f'"nonce":"{ticket.nonce}","since":{since:.6f},"agent":{json.dumps(ticket.agent)}'
    return f'{{"holdfast":1,{extra}{who_and_when},"info":{ticket.info}}}'.encode()


def parse_record(value: bytes) -> Record:
    try:
        found: Any = json.loads(value)
        if found["holdfast"] == 1:
            return Record(
                is_ours=True,
                method=str(found.get("method", "")),
                agent=str(found["agent"]),
                since=float(found["since"]),
                info=json.dumps(found["info"]),
                nonce=str(found.get("nonce", "")),
            )
    except (ValueError, KeyError, TypeError):
        pass
    return Record(is_ours=False, method="", agent="another program", since=0.0, info="")


def holder_of(found: Sequence[KeyValue]) -> str | None:
    """Who the first of these is, for messages."""
    if not found:
        return None
    known = parse_record(found[0].value)
    return process_text(known.info) if known.is_ours else "another program"


def ticket_info(kv: KeyValue, remaining: float, *, granted: bool, entry: QueueEntry | None = None) -> TicketInfo:
    known = parse_record(kv.value)
    kind = entry or parse_key(kv.key, kv.created)
    return make_ticket_info(
        info=known.info,
        fence=kv.created if granted else None,
        agent=known.agent,
        since=known.since,
        remaining=remaining,
        exclusive=kind.exclusive,
        limit=kind.limit,
    )
