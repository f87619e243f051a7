"""Names: of a lock's node, and of the nodes below it, one for each ticket, which the server numbers.

    /holdfast/order%2F42/_c_0100005d2f8a0001-<nonce>-w-lock-0000000017      layout=curator
    /holdfast/order%2F42/0100005d2f8a0001-<nonce>-w__lock__0000000017       layout=kazoo
                         the session       32 hex    w: exclusive, r: shared, s5: one of five permits; and a t behind
                                                     that, if it does not wait: it is in, or about to go

What the rule needs of a ticket stands in its name, so one listing of the children decides who is in. A node with a
number that we did not write counts as exclusive; one without a number is no contender.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

LAYOUTS = ("curator", "kazoo")
# No name of a lock is written like these.
SESSIONS = "%sessions"  # where each client's own node is
REGISTERS = "%marks"  # where marks are, each a node that stays

# What may stand as it is. ZooKeeper refuses control characters, and all that its Java would write with surrogates.
_PLAIN = re.compile(r"[^\x00-\x1f%/\x7f-\x9f\ud800-\U0010ffff]*")
_RESERVED = (".", "..", "zookeeper")
_INVALID = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\U0010ffff]")
_OURS = re.compile(r"(?:_c_)?([0-9a-f]{16})-([0-9a-f]{32})-(w|r|s\d+)(t?)(?:-lock-|__lock__)(-?\d{9,10})")
# Ten digits. After 2147483647 comes -2147483648, and then nine digits will do: "-000000001".
_NUMBERED = re.compile(r"(?:lock-|__)(-\d{9,10}|\d{10})$|(\d{10})$")


class QueueEntry(NamedTuple):
    """A node below a lock's node, as far as its name tells."""

    node: str
    number: int
    nonce: str  # "": not one of ours
    session: int
    limit: int | None
    exclusive: bool
    waits: bool = True

    @property
    def is_foreign(self) -> bool:
        """Another program made it."""
        return not self.nonce


def escaped(name: str) -> str:
    """The name of the lock's node: the name itself, but for what a node's name cannot have, and %."""
    if name in _RESERVED:
        return f"%{ord(name[0]):02X}{name[1:]}"
    if _PLAIN.fullmatch(name):
        return name
    return "".join(one if _PLAIN.fullmatch(one) else _percent(one) for one in name)


def unescaped(node: str) -> str | None:
    """The lock's name; None if no name is written like this."""
    try:
        name = unquote_to_bytes(node).decode()
    except UnicodeDecodeError:
        return None
    return name if escaped(name) == node else None


def path_problem(path: str) -> str:
    """What ZooKeeper would not like in this path, or ""."""
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
    """What the server puts the number behind."""
    kind = ("w" if exclusive else "r" if limit is None else f"s{limit}") + ("" if waits else "t")
    if layout == "kazoo":
        return f"{session:016x}-{nonce}-{kind}__lock__"
    return f"_c_{session:016x}-{nonce}-{kind}-lock-"


def parse_node(node: str) -> QueueEntry | None:
    """What a node's name tells; None if it has no number and so no place in the order."""
    ours = _OURS.fullmatch(node)
    if ours is not None:
        session, nonce, kind, tries, number = ours.groups()
        limit = 1 if kind == "w" else None if kind == "r" else int(kind[1:])
        return QueueEntry(node, int(number), nonce, int(session, 16), limit, kind == "w", not tries)
    numbered = _NUMBERED.search(node)
    if numbered is None:
        return None
    return QueueEntry(node, int(numbered[1] or numbered[2]), "", 0, 1, exclusive=True)


def queue_entries(nodes: Iterable[str]) -> list[QueueEntry]:
    """The contenders among these, first come first.

    Their numbers are 32 bits wide and go round: of two, the one that is less than half a turn behind came first.
    """
    found = [one for one in map(parse_node, nodes) if one is not None]
    if len(found) > 1:
        base = found[0].number
        found.sort(key=lambda one: sequence_distance(one.number, base))
    return found


def sequence_distance(number: int, other: int) -> int:
    """How far it stands behind the other; negative: before it."""
    return (number - other + 2**31) % 2**32 - 2**31


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
