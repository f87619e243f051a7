"""The data of a ticket's node: process, session timeout and agent, written for operators."""

from __future__ import annotations

from holdfast.backends.zookeeper.port import Answer, Node, Session
from holdfast.backends.zookeeper.protocol.nodes import QueueEntry
from holdfast.core.tickets import Claim, TicketInfo, make_ticket_info, process_text
from holdfast.errors import ConfigurationError

DATA_MAX = 500_000  # bytes; by default the servers drop a connection that sends twice as much


def encode_value(claim: Claim, session: Session) -> bytes:
    """Raises ConfigurationError: its `meta` is too long."""
    data = f"{claim.info}\n{session.timeout:g}\n{claim.agent}".encode("utf-8", "replace")
    if len(data) > DATA_MAX:
        raise ConfigurationError(f"meta is too long for a node of ZooKeeper: at most {DATA_MAX} bytes")
    return data


def holder_name(node: Answer) -> str:
    """The holder, for messages."""
    if not isinstance(node, Node):
        return "a holder that has just released it"
    info, _, timeout_and_agent = node.data.decode("utf-8", "replace").partition("\n")
    return process_text(info) if timeout_and_agent else "another program"


def ticket_info(entry: QueueEntry, node: Node, *, granted: bool) -> TicketInfo:
    data = b"" if entry.is_foreign else node.data  # other programs write other data
    info, _, timeout_and_agent = data.decode("utf-8", "replace").partition("\n")
    timeout, _, agent = timeout_and_agent.partition("\n")
    try:
        remaining = float(timeout)
    except ValueError:
        remaining = float("inf")
    return make_ticket_info(
        info=info,
        fence=None if not granted else 0 if entry.is_foreign else node.czxid,
        agent=agent,
        since=node.mtime if granted else node.ctime,
        remaining=remaining,
        exclusive=entry.exclusive,
        limit=entry.limit,
    )
