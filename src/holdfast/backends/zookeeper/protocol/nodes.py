"""Names of nodes: a lock's node, and below it one sequential node for each ticket.

    /holdfast/order%2F42/_c_0100005d2f8a0001-<nonce>-w-lock-0000000017      layout=curator
    /holdfast/order%2F42/0100005d2f8a0001-<nonce>-w__lock__0000000017       layout=kazoo
                         the session       32 hex    w: exclusive, r: shared, s5: one of five permits. A t follows if
                                                     the ticket does not wait: it is granted, or is deleted soon

The name has all that the rule needs to know of a ticket, so one listing of the children decides which tickets are
granted. A sequential node of another program counts as exclusive. A node without a number is not in the queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

LAYOUTS = ("curator", "kazoo")
# No escaped name of a lock is equal to these.
SESSIONS = "%sessions"  # the parent of the nodes that heartbeats write to
REGISTERS = "%marks"  # the parent of registers, each a persistent node, and of the parents of records

# Characters that need no escape. ZooKeeper refuses control characters, and characters that are surrogates in Java.
_PLAIN = re.compile(r"[^\x00-\x1f%/\x7f-\x9f\ud800-\U0010ffff]*")
_RESERVED = (".", "..", "zookeeper")
_INVALID = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\U0010ffff]")
_OURS = re.compile(r"(?:_c_)?([0-9a-f]{16})-([0-9a-f]{32})-(w|r|s\d+)(t?)(?:-lock-|__lock__)(-?\d{9,10})")
# Ten digits. The number after 2147483647 is -2147483648, and a small negative one has nine digits: "-000000001".
_NUMBERED = re.compile(r"(?:lock-|__)(-\d{9,10}|\d{10})$|(\d{10})$")


class QueueEntry(NamedTuple):
    """A ticket as its node's name describes it."""

    node: str
    number: int
    nonce: str  # "": a node of another program
    session: int
    limit: int | None
    exclusive: bool
    waits: bool = True

    @property
    def is_foreign(self) -> bool:
        """Another program created it."""
        return not self.nonce


def escaped(name: str) -> str:
    """The name of a lock's node: the lock's name, with % and all characters that ZooKeeper refuses escaped."""
    if name in _RESERVED:
        return f"%{ord(name[0]):02X}{name[1:]}"
    if _PLAIN.fullmatch(name):
        return name
    return "".join(character if _PLAIN.fullmatch(character) else _percent(character) for character in name)


def unescaped(node: str) -> str | None:
    """The lock's name; None if this is no escaped name."""
    try:
        name = unquote_to_bytes(node).decode()
    except UnicodeDecodeError:
        return None
    return name if escaped(name) == node else None


def path_problem(path: str) -> str:
    """Why ZooKeeper would refuse this path; "" if it would not."""
    if not path.startswith("/") or path.endswith("/"):
        return "it has to begin with /, and must not end with one"
    parts = path[1:].split("/")
    if "" in parts:
        return "a part of it is empty"
    if "." in parts or ".." in parts:
        return "a part of it is . or .."
    if parts[0] == "zookeeper":
        return "/zookeeper is ZooKeeper's own"
    if _INVALID.search(path):
        return "it has characters that ZooKeeper refuses"
    return ""


def node_prefix(
    layout: str, session: int, nonce: str, limit: int | None, *, exclusive: bool, waits: bool = True
) -> str:
    """The name of a new node, to which the server appends the number."""
    kind = ("w" if exclusive else "r" if limit is None else f"s{limit}") + ("" if waits else "t")
    if layout == "kazoo":
        return f"{session:016x}-{nonce}-{kind}__lock__"
    return f"_c_{session:016x}-{nonce}-{kind}-lock-"


def parse_node(node: str) -> QueueEntry | None:
    """The ticket of a node; None if the name has no number, so that it has no place in the queue."""
    ours = _OURS.fullmatch(node)
    if ours is not None:
        session, nonce, kind, no_wait, number = ours.groups()
        limit = 1 if kind == "w" else None if kind == "r" else int(kind[1:])
        return QueueEntry(node, int(number), nonce, int(session, 16), limit, kind == "w", not no_wait)
    numbered = _NUMBERED.search(node)
    if numbered is None:
        return None
    return QueueEntry(node, int(numbered[1] or numbered[2]), "", 0, 1, exclusive=True)


def queue_entries(nodes: Iterable[str]) -> list[QueueEntry]:
    """The tickets among these nodes, in the order in which they were created.

    Their numbers have 32 bits and wrap around, so the sign of the difference modulo 2**32 decides the order.
    """
    entries = [entry for entry in map(parse_node, nodes) if entry is not None]
    return sorted(entries, key=lambda entry: sequence_distance(entry.number, entries[0].number))


def sequence_distance(number: int, other: int) -> int:
    """By how many a number follows the other, across the wrap-around; negative: it precedes it."""
    return (number - other + 2**31) % 2**32 - 2**31


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
