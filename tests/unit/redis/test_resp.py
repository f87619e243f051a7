"""Hazard: a length counts characters in place of bytes, a reply in two parts is parsed wrongly, or the keys of one lock
are in different slots.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.redis.io.resp import (
    ErrorReply,
    Parser,
    pack,
    pack_call,
    pack_text,
    single_message,
)
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.port import Call
from holdfast.backends.redis.protocol.keys import (
    QueueKeys,
    index_keys,
    keys_of,
    name_of,
    queue_keys,
    record_key,
    register_key,
    slot_of,
)
from holdfast.errors import NameConflict
from tests.support.call_counts import count_calls

NASTY = ["a", "ä", "order{42}", "{x}y", "a}b", "{}", "}{", "{{x}}", "{", "}", "a{}b", "x" * 512, "\n", "☃{☃}☃", " "]


def words(packed: bytes) -> list[list[bytes]]:
    """The words, as a server parses them."""
    parser = Parser()
    parser.feed(packed)
    commands = []
    while (command := parser.gets()) is not False:
        commands.append(command)
    return commands


def test_words_are_counted_in_bytes() -> None:
    assert pack("SET", "ä", b"\r\n$1", -7) == b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xa4\r\n$4\r\n\r\n$1\r\n$2\r\n-7\r\n"


@pytest.mark.parametrize("name", NASTY)
def test_a_call_is_the_script_the_seven_keys_and_the_arguments(name: str) -> None:
    script = Script.of("queue/try_acquire", "return 1")
    keys = queue_keys("holdfast:", name, per_slot=False)
    call = Call(script, keys, ("nonce", 30000, b"\x00"))

    by_digest, by_text = words(pack_call(call) + pack_text(call))

    arguments = [b"7", *(key.encode() for key in keys.names), b"nonce", b"30000", b"\x00"]
    assert by_digest == [b"EVALSHA", script.sha.encode(), *arguments]
    assert by_text == [b"EVAL", b"return 1", *arguments]


@pytest.mark.parametrize("prefix", ["holdfast:", "", "{locks}:", "a:"])
@pytest.mark.parametrize("name", NASTY)
def test_all_keys_of_a_lock_are_in_one_slot_and_under_the_prefix(prefix: str, name: str) -> None:
    for keys in (keys_of(prefix, name), queue_keys(prefix, name, per_slot=True)):
        assert {slot_of(key) for key in keys.names} == {keys.slot}
        assert len(set(keys.names)) == (7 if isinstance(keys, QueueKeys) else 4)
        assert all(key.startswith(prefix) for key in keys.names)


def test_all_locks_share_a_watermark_and_an_index_and_on_a_cluster_those_in_one_slot_do() -> None:
    names = [f"name-{number}" for number in range(200)]
    alone = [queue_keys("holdfast:", name, per_slot=False) for name in names]
    cluster = [queue_keys("holdfast:", name, per_slot=True) for name in names]
    tagged = [queue_keys("{locks}:", name, per_slot=True) for name in names]

    assert {(keys.watermark, keys.locks) for keys in alone} == {("holdfast:{}:fence", "holdfast:{}:locks")}
    assert len({(keys.watermark, keys.locks) for keys in cluster}) == len({keys.slot for keys in cluster}) > 1
    assert len({(keys.watermark, keys.locks) for keys in tagged}) == 1
    assert {keys.locks for keys in cluster} <= {index.lock for index in index_keys("holdfast:", per_slot=True)}
    assert {keys.locks for keys in alone} == {index.lock for index in index_keys("holdfast:", per_slot=False)}
    assert {keys.locks for keys in tagged} == {index.lock for index in index_keys("{locks}:", per_slot=True)}


@pytest.mark.parametrize("name", ["{}:fence", "{}:locks", "{17}:fence", "{17}:locks"])
def test_a_lock_cannot_have_the_key_of_the_watermark_or_of_the_index(name: str) -> None:
    with pytest.raises(NameConflict, match="use another name"):
        queue_keys("holdfast:", name, per_slot=False)
    assert name_of("holdfast:", f"holdfast:{name}") is None


@pytest.mark.parametrize("name", NASTY)
def test_the_side_keys_of_a_lock_do_not_depend_on_the_length_of_its_prefix(name: str) -> None:
    whole = f"a:b:{name}"

    assert len({keys_of(whole[:end], whole[end:]).names for end in range(4)}) == 1
    assert len({queue_keys(whole[:end], whole[end:], per_slot=False).names[:5] for end in range(4)}) == 1


def test_clients_with_different_prefixes_use_the_same_lock_key_and_different_watermarks() -> None:
    script = Script.of("queue/try_acquire", "return 1")
    keys_of_clients = [queue_keys(prefix, name, per_slot=False) for prefix, name in (("a:", "b"), ("", "a:b"))]

    first, second = (words(pack_call(Call(script, keys, ("nonce", 1))))[0] for keys in keys_of_clients)

    assert first[3] == second[3] == b"a:b"
    assert (first[8], second[8]) == (b"a:{}:fence", b"{}:fence")


@pytest.mark.parametrize("prefix", ["holdfast:", "", "{locks}:"])
@pytest.mark.parametrize("name", NASTY)
def test_the_key_of_a_queue_shows_its_lock_and_other_side_keys_show_none(prefix: str, name: str) -> None:
    lock, record, queue, leases = keys_of(prefix, name).names
    _, _, *others = queue_keys(prefix, name, per_slot=True).names

    assert [name_of(prefix, key) for key in (lock, queue)] == [name, name]
    others += [record, leases, register_key(prefix, name).lock, record_key(prefix, name).lock]
    assert [name_of(prefix, key) for key in others] == [None] * 9


@pytest.fixture
def parser() -> Parser:
    return Parser()


REPLIES: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b":-12\r\n", -12),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n$2\r\nin\r\n:7\r\n*1\r\n$-1\r\n", [b"in", 7, [None]]),
    (b"*3\r\n*2\r\n*0\r\n:1\r\n*-1\r\n:2\r\n", [[[], 1], None, 2]),
]


@pytest.mark.parametrize(("data", "reply"), REPLIES)
def test_a_reply_is_parsed_when_it_arrives_in_pieces(parser: Parser, data: bytes, reply: Any) -> None:
    for cut in range(1, len(data)):
        parser.feed(data[:cut])
        assert parser.gets() is False
        assert parser.has_data()
        parser.feed(data[cut:] + b":1\r\n")
        assert parser.gets() == reply
        assert parser.gets() == 1
        assert parser.gets() is False
        assert not parser.has_data()


def test_each_piece_of_a_long_reply_is_parsed_once(parser: Parser) -> None:
    elements = [pack(b"waiter", number) for number in range(500)]
    head = b"*%d\r\n" % len(elements)

    def calls(*pieces: bytes) -> int:
        reply: Any = False

        def parse() -> None:
            nonlocal reply
            for piece in pieces:
                parser.feed(piece)
                reply = parser.gets()

        events = count_calls(parse)
        assert len(reply) == len(elements)
        return events.total()

    assert calls(head, *elements) < 3 * calls(b"".join((head, *elements)))


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
