"""Hazard: replies that come in pieces, or that are no replies at all."""

from __future__ import annotations

import pytest

from holdfast.backends.memcached.protocol.meta import Parser, Reply

SAID = (
    b"HD c12\r\nNS c0\r\nVA 5 c7 t-1\r\na\r\nb\n\r\nEN\r\nVA 0 c8 t30\r\n\r\n"
    b"STAT pid 7\r\nSTAT version 1.6.18 x\r\nEND\r\nkey=a%20b exp=5 la=1\nkey=c exp=-1\nEND\r\n"
    b"SERVER_ERROR out of memory storing object\r\nMN\r\n"
)
MEANT = [
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


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(SAID)])
def test_replies_are_the_same_however_they_are_cut_into_pieces(size: int) -> None:
    parser, said = Parser(), []
    for start in range(0, len(SAID), size):
        parser.feed(SAID[start : start + size])
        while (reply := parser.next_reply()) is not None:
            said.append(reply)

    assert said == MEANT
    assert not parser.has_data


def test_facts_are_by_name() -> None:
    assert MEANT[5].stats() == {"pid": "7", "version": "1.6.18 x"}


def test_what_the_server_did_not_understand_ends_the_connection() -> None:
    parser = Parser()
    parser.feed(b"CLIENT_ERROR bad data chunk\r\nSERVER_ERROR x\r\nERROR\r\n")
    first, second, third = parser.next_reply(), parser.next_reply(), parser.next_reply()

    assert first is not None
    assert second is not None
    assert third is not None
    assert [one.ends_connection for one in (first, second, third)] == [True, False, True]
    assert all(one.is_error for one in (first, second, third))


@pytest.mark.parametrize(
    "nonsense", [b"HTTP/1.1 400 Bad Request\r\n", b"VA x\r\n", b"VA 2 c1\r\nabcd\r\n", b"HD cx\r\n", b"x" * 70_000]
)
def test_who_speaks_otherwise_is_no_memcached(nonsense: bytes) -> None:
    parser = Parser()
    parser.feed(nonsense)

    with pytest.raises(ValueError, match=r".+"):
        parser.next_reply()
