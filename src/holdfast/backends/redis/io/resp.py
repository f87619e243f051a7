"""RESP2, which every supported server speaks: pack commands, parse replies.

Optimised for EVALSHA. Usually all of its words but the nonce are the same as the last time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.backends.redis.protocol.keys import OtherKeys

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Reply, Word


class ErrorReply(Exception):
    """An error reply of the server, `-CODE text`. It is returned like other replies, not raised."""


class Parser(Protocol):
    """Bytes in, replies out. `gets` returns False if no reply is complete: RESP2 has no such value."""

    def feed(self, data: bytes, /) -> object: ...
    def gets(self) -> Reply: ...
    def has_data(self) -> bool: ...


def pack(*words: Word) -> bytes:
    """Pack one command."""
    return b"*%d\r\n%b" % (len(words), _packed(words))


def pack_around(call: Call) -> tuple[bytes, bytes]:
    """Pack EVALSHA for calls that differ in the first argument only, which has the same size in all of them.

    Returns the parts before and after that argument.
    """
    script, keys, (first, *others) = call
    head = _begin("EVALSHA", script.sha, call) + keys.packed
    return b"%b$%d\r\n" % (head, len(_word(first))), b"\r\n" + _packed(tuple(others))


def pack_call(call: Call) -> bytes:
    """Pack EVALSHA. The parts before and after the first argument are packed once and kept."""
    script, keys, arguments = call
    if keys.__class__ is OtherKeys:  # rarely repeated
        return _begin("EVALSHA", script.sha, call) + keys.packed + _packed(arguments)
    known = (script.sha, keys.packed, arguments[1:])
    try:
        head, tail = _prepared[known]
    except KeyError:
        head, tail = _begin("EVALSHA", script.sha, call) + keys.packed, _packed(arguments[1:])
        if len(head) + len(tail) <= _PREPARED_SIZE_MAX:
            if len(_prepared) >= _PREPARED_MAX:
                _prepared.clear()
            _prepared[known] = head, tail
    if not arguments:
        return head
    first = arguments[0]
    data = first.encode() if first.__class__ is str else _word(first)
    return b"%b$%d\r\n%b\r\n%b" % (head, len(data), data, tail)


def pack_text(call: Call) -> bytes:
    """Pack EVAL with the text of the script, for a server that does not have it. EVAL also loads it."""
    return _begin("EVAL", call.script.text, call) + call.keys.packed + _packed(call.arguments)


def new_parser() -> Parser:
    """The parser of hiredis if it is installed, as in redis-py itself."""
    if _hiredis is None or not hasattr(_hiredis.Reader, "has_data"):
        return PythonParser()
    parser: Parser = _hiredis.Reader(replyError=ErrorReply)
    return parser


class PythonParser:
    """A parser in Python, for use without hiredis."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def feed(self, data: bytes, /) -> None:
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    def has_data(self) -> bool:
        return self._at < len(self._data)

    def gets(self) -> Reply:
        start = self._at
        if start == len(self._data):
            return False
        try:
            return self._read()
        except IndexError:  # incomplete
            self._at = start
            return False

    def _read(self) -> Reply:
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            raise IndexError
        kind, line = self._data[self._at : self._at + 1], self._data[self._at + 1 : end]
        self._at = end + 2
        match kind:
            case b"+":
                return line
            case b"-":
                return ErrorReply(line.decode(errors="replace"))
            case b":":
                return int(line)
            case b"$":
                return self._read_bytes(int(line))
            case b"*":
                return None if line == b"-1" else [self._read() for _ in range(int(line))]
            case _:
                raise ValueError(f"unknown type of reply {kind!r}")

    def _read_bytes(self, length: int) -> bytes | None:
        if length < 0:
            return None
        start, self._at = self._at, self._at + length + 2
        if self._at > len(self._data):
            raise IndexError
        return self._data[start : start + length]


def single_message(data: bytes) -> bytes:
    """The payload of a message if `data` is exactly one message; otherwise b"". Takes a tenth of a parser's time."""
    match data.split(b"\r\n"):
        case [b"*3", _, b"message" | b"smessage", _, _, _, payload, b""]:
            return payload
        case _:
            return b""


def _import_hiredis() -> Any:
    try:
        return importlib.import_module("hiredis")
    except ImportError:
        return None


_hiredis = _import_hiredis()
_prepared: dict[tuple[str, bytes, tuple[Word, ...]], tuple[bytes, bytes]] = {}
# At most 4096 entries of 2 KiB, which is 16 MiB with the arguments that are their keys, and about 2 MB at the usual
# size. A call with more arguments is packed each time.
_PREPARED_MAX, _PREPARED_SIZE_MAX = 4096, 2048  # entries; bytes


def _begin(command: str, script: str, call: Call) -> bytes:
    keys = len(call.keys.names)
    return b"*%d\r\n%b" % (3 + keys + len(call.arguments), _packed((command, script, keys)))


def _packed(words: tuple[Word, ...]) -> bytes:
    """The words as bulk strings."""
    parts = []
    for word in words:
        data = _word(word)
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _word(word: Word) -> bytes:
    return word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else b"%d" % word
