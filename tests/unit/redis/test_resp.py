"""Hazard: wrong bytes: a length that counts characters, a reply that arrives in two parts."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.redis.io.resp import (
    ErrorReply,
    Parser,
    PythonParser,
    new_parser,
    pack,
    pack_call,
    pack_text,
    single_message,
)
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.port import Call
from holdfast.backends.redis.protocol.keys import keys_of, name_of, record_key, register_key, slot_of

NASTY = ["a", "ä", "order{42}", "{x}y", "a}b", "{}", "}{", "{{x}}", "{", "}", "a{}b", "x" * 512, "\n", "☃{☃}☃", " "]


def words(packed: bytes) -> list[list[bytes]]:
    """The words, as a server parses them."""
    parser = PythonParser()
    parser.feed(packed)
    found = []
    while (command := parser.gets()) is not False:
        found.append(command)
    return found


def test_words_are_counted_in_bytes() -> None:
    assert pack("SET", "ä", b"\r\n$1", -7) == b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xa4\r\n$4\r\n\r\n$1\r\n$2\r\n-7\r\n"


@pytest.mark.parametrize("name", NASTY)
def test_a_call_is_the_script_the_five_keys_and_the_arguments(name: str) -> None:
    script = Script.of("queue/enter", "return 1")
    keys = keys_of("holdfast:", name)
    call = Call(script, keys, ("nonce", 30000, b"\x00"))

    by_digest, by_text = words(pack_call(call) + pack_text(call))

    named = [keys.lock, keys.record, keys.queue, keys.leases, keys.shared]
    rest = [b"5", *(key.encode() for key in named), b"nonce", b"30000", b"\x00"]
    assert by_digest == [b"EVALSHA", script.sha.encode(), *rest]
    assert by_text == [b"EVAL", b"return 1", *rest]


@pytest.mark.parametrize("prefix", ["holdfast:", "", "{locks}:", "a:"])
@pytest.mark.parametrize("name", NASTY)
def test_all_keys_of_a_lock_are_in_one_slot_and_under_the_prefix(prefix: str, name: str) -> None:
    keys = keys_of(prefix, name)
    named = [keys.lock, keys.record, keys.queue, keys.leases, keys.shared]

    assert {slot_of(key) for key in named} == {keys.slot}
    assert len(set(named)) == 5
    assert all(key.startswith(prefix) for key in named)


@pytest.mark.parametrize("name", NASTY)
def test_the_keys_of_a_lock_do_not_depend_on_where_its_prefix_ends(name: str) -> None:
    whole = f"a:b:{name}"

    assert len({keys_of(whole[:end], whole[end:]).names for end in range(4)}) == 1


@pytest.mark.parametrize("prefix", ["holdfast:", "", "{locks}:"])
@pytest.mark.parametrize("name", NASTY)
def test_a_queue_is_known_for_its_lock_and_other_side_keys_are_not(prefix: str, name: str) -> None:
    lock, record, queue, leases, shared = keys_of(prefix, name).names

    assert [name_of(prefix, key) for key in (lock, queue)] == [name, name]
    others = (register_key(prefix, name).lock, record_key(prefix, name).lock)
    assert [name_of(prefix, key) for key in (record, leases, shared, *others)] == [None] * 5


@pytest.fixture(params=["hiredis", "python"])
def parser(request: pytest.FixtureRequest) -> Parser:
    if request.param == "hiredis":
        pytest.importorskip("hiredis")
    return new_parser() if request.param == "hiredis" else PythonParser()


REPLIES: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b":-12\r\n", -12),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n$2\r\nin\r\n:7\r\n*1\r\n$-1\r\n", [b"in", 7, [None]]),
]


@pytest.mark.parametrize(("data", "reply"), REPLIES)
def test_a_reply_is_parsed_when_it_arrives_in_pieces(parser: Parser, data: bytes, reply: Any) -> None:
    for cut in range(1, len(data)):
        parser.feed(data[:cut])
        assert parser.gets() is False
        parser.feed(data[cut:] + b":1\r\n")
        assert parser.gets() == reply
        assert parser.gets() == 1
        assert parser.gets() is False


def test_an_error_reply_keeps_its_code(parser: Parser) -> None:
    parser.feed(b"-NOSCRIPT No matching script.\r\n*2\r\n:1\r\n-ERR inside\r\n")

    first, second = parser.gets(), parser.gets()

    assert isinstance(first, ErrorReply)
    assert str(first) == "NOSCRIPT No matching script."
    assert isinstance(second[1], ErrorReply)


MESSAGE = pack(b"message", "holdfast:wake:1", "n1 17")


@pytest.mark.parametrize("kind", ["message", "smessage"])
def test_a_single_message_is_read_without_a_parser(kind: str) -> None:
    assert single_message(pack(kind, "holdfast:wake:1", "n1 17")) == b"n1 17"


@pytest.mark.parametrize(
    "data",
    [
        MESSAGE + MESSAGE,
        MESSAGE + b"+PONG\r\n",
        b"+PONG\r\n",
        pack(b"subscribe", "c", "1"),
        *(MESSAGE[:at] for at in range(len(MESSAGE))),
    ],
)
def test_other_data_than_a_single_message_is_left_to_the_parser(data: bytes) -> None:
    assert single_message(data) == b""
