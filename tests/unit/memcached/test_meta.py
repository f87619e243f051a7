"""Hazard: replies that arrive in pieces, or data that is not a reply."""

from __future__ import annotations

import pytest

from holdfast.backends.memcached.protocol.meta import Parser, Reply

DATA = (
    b"HD c12\r\nNS c0\r\nVA 5 c7 t-1\r\na\r\nb\n\r\nEN\r\nVA 0 c8 t30\r\n\r\n"
    b"STAT pid 7\r\nSTAT version 1.6.18 x\r\nEND\r\nkey=a%20b exp=5 la=1\nkey=c exp=-1\nEND\r\n"
    b"SERVER_ERROR out of memory storing object\r\nMN\r\n"
)
REPLIES = [
    Reply("HD", version=12),
    Reply("NS"),
    Reply("VA", version=7, seconds_left=-1, value=b"a\r\nb\n"),
    Reply("EN"),
    Reply("VA", version=8, seconds_left=30),
    Reply("LIST", lines=(b"STAT pid 7", b"STAT version 1.6.18 x")),
    Reply("LIST", lines=(b"key=a%20b exp=5 la=1", b"key=c exp=-1")),
    Reply("SERVER_ERROR", value=b"SERVER_ERROR out of memory storing object"),
    Reply("MN"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(DATA)])
def test_replies_are_parsed_from_pieces_of_any_size(size: int) -> None:
    parser, replies = Parser(), []
    for start in range(0, len(DATA), size):
        parser.feed(DATA[start : start + size])
        while (reply := parser.next_reply()) is not None:
            replies.append(reply)

    assert replies == REPLIES
    assert not parser.has_data


def test_stats_are_parsed_by_name() -> None:
    assert REPLIES[5].stats() == {"pid": "7", "version": "1.6.18 x"}


def test_an_error_reply_to_a_bad_request_ends_the_connection() -> None:
    parser = Parser()
    parser.feed(b"CLIENT_ERROR bad data chunk\r\nSERVER_ERROR x\r\nERROR\r\n")
    first, second, third = parser.next_reply(), parser.next_reply(), parser.next_reply()

    assert first is not None
    assert second is not None
    assert third is not None
    assert [reply.ends_connection for reply in (first, second, third)] == [True, False, True]
    assert all(reply.is_error for reply in (first, second, third))


@pytest.mark.parametrize(
    "nonsense", [b"HTTP/1.1 400 Bad Request\r\n", b"VA x\r\n", b"VA 2 c1\r\nabcd\r\n", b"HD cx\r\n", b"x" * 70_000]
)
def test_data_that_is_not_a_reply_is_an_error(nonsense: bytes) -> None:
    parser = Parser()
    parser.feed(nonsense)

    with pytest.raises(ValueError, match=r".+"):
        parser.next_reply()
