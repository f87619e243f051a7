"""RESP2, which every supported server speaks: pack commands, parse replies.

Optimised for EVALSHA. Usually all of its words but the nonce are the same as the last time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.protocol.keys import OtherKeys

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Reply, Word


class ErrorReply(Exception):
    """An error reply of the server, `-CODE text`. It is returned like other replies, not raised."""


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


class Parser:
    """Bytes in, replies out.

    The elements of an incomplete array are kept, so each byte of a long reply is parsed once, however many parts it
    arrives in.
    """

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._arrays: list[tuple[list[Reply], int]] = []  # incomplete, each inside the one before it; and their sizes

    def feed(self, data: bytes, /) -> None:
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    def has_data(self) -> bool:
        """Whether a part of a reply has arrived."""
        return self._at < len(self._data) or bool(self._arrays)

    def gets(self) -> Reply:
        """The next reply. False if it is incomplete: RESP2 has no such value."""
        arrays = self._arrays
        while (value := self._next_value()) is not _INCOMPLETE:
            while arrays:
                array, size = arrays[-1]
                array.append(value)
                if len(array) < size:
                    break
                value = arrays.pop()[0]
            else:
                return value
        return False

    def _next_value(self) -> Reply:
        """The next value that is not an array, or an empty array. Other arrays are opened."""
        data = self._data
        while (end := data.find(b"\r\n", self._at)) >= 0:
            kind, line, after = data[self._at : self._at + 1], data[self._at + 1 : end], end + 2
            value: Reply
            match kind:
                case b":":
                    value = int(line)
                case b"$":
                    length = int(line)
                    if length < 0:
                        value = None
                    else:
                        start, after = after, after + length + 2
                        if after > len(data):
                            return _INCOMPLETE
                        value = data[start : start + length]
                case b"*":
                    size = int(line)
                    if size > 0:
                        self._arrays.append(([], size))
                        self._at = after
                        continue
                    value = [] if size == 0 else None
                case b"+":
                    value = line
                case b"-":
                    value = ErrorReply(line.decode(errors="replace"))
                case _:
                    raise ValueError(f"unknown type of reply {kind!r}")
            self._at = after
            return value
        return _INCOMPLETE


def single_message(data: bytes) -> bytes:
    """The payload of a message if `data` is exactly one message; otherwise b"". Takes a tenth of a parser's time."""
    match data.split(b"\r\n"):
        case [b"*3", _, b"message" | b"smessage", _, _, _, payload, b""]:
            return payload
        case _:
            return b""


_INCOMPLETE: Any = object()
_prepared: dict[tuple[str, bytes, tuple[Word, ...]], tuple[bytes, bytes]] = {}
# At most 4096 entries of 2 KiB, which is 16 MiB with the arguments that are their keys, and about 2 MB at the usual
# size. A call with more arguments is packed each time.
_PREPARED_MAX, _PREPARED_SIZE_MAX = 4096, 2048  # entries; bytes


def _begin(command: str, script: str, call: Call) -> bytes:
    keys = len(call.keys.names)
    return b"*%d\r\n%b" % (3 + keys + len(call.arguments), _packed((command, script, keys)))


def _packed(words: tuple[Word, ...]) -> bytes:
    """The words as bulk strings."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in map(_word, words)])


def _word(word: Word) -> bytes:
    return word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else b"%d" % word
