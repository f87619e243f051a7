"""Hazard: messages that arrive in pieces, or are not of this protocol."""

from __future__ import annotations

import pytest

from holdfast.backends.nats.protocol.bucket import is_marker
from holdfast.backends.nats.protocol.wire import Message, Parser, publish

STREAM = (
    b'INFO {"version":"2.15.1"} \r\nPING\r\n+OK\r\n'
    b"MSG _INBOX.a.1 1 5\r\nhe\r\no\r\n"
    b"HMSG _INBOX.a.2 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"HMSG holdfast.b.lock.a 2 reply 25 26\r\nNATS/1.0\r\nA: b\r\nC:d:e\r\n\r\nx\r\n"
    b"-ERR 'Permissions Violation'\r\nPONG\r\n"
)
MESSAGES = [
    Message("INFO", data=b'{"version":"2.15.1"}'),
    Message("PING"),
    Message("+OK"),
    Message("MSG", "_INBOX.a.1", data=b"he\r\no"),
    Message("MSG", "_INBOX.a.2", "503"),
    Message("MSG", "holdfast.b.lock.a", "", {"A": "b", "C": "d:e"}, b"x"),
    Message("-ERR", data=b"Permissions Violation"),
    Message("PONG"),
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_are_parsed_from_pieces_of_any_size(size: int) -> None:
    parser, messages = Parser(), []
    for start in range(0, len(STREAM), size):
        parser.feed(STREAM[start : start + size])
        while (message := parser.next_message()) is not None:
            messages.append(message)

    assert messages == MESSAGES


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"x" * 70_000, b"MSG a 1 many\r\n"])
def test_another_protocol_is_refused(data: bytes) -> None:
    parser = Parser()
    parser.feed(data)

    with pytest.raises(ValueError, match=r".+"):
        parser.next_message()


def test_a_publish_has_the_sizes_of_its_header_and_of_all() -> None:
    assert publish("a.b", "r", b"xy", {"H": 1}) == b"HPUB a.b r 18 20\r\nNATS/1.0\r\nH: 1\r\n\r\nxy\r\n"


def test_markers_are_deletions_of_clients_and_of_the_server() -> None:
    assert is_marker({"KV-Operation": "PURGE"})
    assert is_marker({"KV-Operation": "DEL"})
    assert is_marker({"Nats-Marker-Reason": "MaxAge"})
    assert not is_marker({"Nats-Marker-Reason": "holdfast"})
    assert not is_marker({})
