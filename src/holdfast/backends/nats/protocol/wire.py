"""The client protocol of NATS as bytes: builds the few verbs that locks need, and parses what servers send. No I/O.

client:  CONNECT {…}   PING   PONG   SUB subject sid   UNSUB sid   PUB/HPUB subject reply sizes
server:  INFO {…}      PING   PONG   -ERR 'text'       MSG/HMSG subject sid [reply] sizes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

PING, PONG = b"PING\r\n", b"PONG\r\n"
_LINE_MAX = 1 << 16
_END = b"\r\n"


class Message(NamedTuple):
    """One message of a server."""

    verb: str  # INFO, PING, PONG, -ERR, +OK, MSG
    subject: str = ""  # of a MSG
    status: str = ""  # of a MSG whose header has one, such as 503 (no responders)
    headers: Mapping[str, str] = {}
    data: bytes = b""  # also the text of INFO and -ERR


def connect(options: Mapping[str, Any]) -> bytes:
    return b"CONNECT %b\r\n" % json.dumps(options).encode()


def subscribe(subject: str, sid: int) -> bytes:
    return b"SUB %b %d\r\n" % (subject.encode(), sid)


def unsubscribe(sid: int) -> bytes:
    return b"UNSUB %d\r\n" % sid


def publish(subject: str, reply: str, data: bytes, headers: Mapping[str, object] | None = None) -> bytes:
    fields = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"NATS/1.0\r\n{fields}\r\n".encode()
    sizes = (len(head), len(head) + len(data))
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject.encode(), reply.encode(), *sizes, head, data)


def parse_headers(block: bytes) -> tuple[str, dict[str, str]]:
    """The status and the fields of a header."""
    first, *lines = block.decode(errors="replace").split("\r\n")
    fields = (line.partition(":") for line in lines if line)
    return first.removeprefix("NATS/1.0").strip()[:3], {name.strip(): value.strip() for name, _, value in fields}


class Parser:
    """Parses messages that arrive in pieces."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        self._data += data

    def next_message(self) -> Message | None:
        """The next message; None if it is incomplete.

        Raises:
            ValueError: this is not the protocol of NATS.
        """
        line, ended, _ = self._data.partition(_END)
        if not ended:
            if len(self._data) > _LINE_MAX:
                raise ValueError("a line without an end")
            return None
        after = len(line) + len(_END)
        verb, _, rest = line.partition(b" ")
        name = verb.decode(errors="replace").upper()
        if name not in {"MSG", "HMSG"}:
            if name not in {"INFO", "PING", "PONG", "-ERR", "+OK"}:
                raise ValueError(f"a message that begins with {verb[:20]!r}")
            self._data = self._data[after:]
            return Message(name, data=rest.strip(b" '"))
        words = rest.split()
        sizes = list(map(int, words[-2 if name == "HMSG" else -1 :]))
        if len(self._data) < after + sizes[-1] + len(_END):
            return None
        body = self._data[after : after + sizes[-1]]
        self._data = self._data[after + sizes[-1] + len(_END) :]
        head = sizes[0] if name == "HMSG" else 0
        status, headers = parse_headers(body[:head]) if head else ("", {})
        return Message("MSG", words[0].decode(), status, headers, body[head:])
