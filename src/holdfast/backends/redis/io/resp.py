"""The bytes on the wire: commands packed, replies unpacked. RESP2, as every supported server speaks it.

Written for the one command that counts, EVALSHA, of which all but a nonce is mostly what it was the last time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.backends.redis.protocol.keys import Keys

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Reply, Word


class ErrorReply(Exception):
    """The server's `-CODE words`: an answer like others, until somebody makes an error of it."""


class Parser(Protocol):
    """Bytes in, replies out. `gets` answers False when there is none yet: RESP2 has no such value of its own."""

    def feed(self, data: bytes, /) -> object: ...
    def gets(self) -> Reply: ...
    def has_data(self) -> bool: ...


def pack(*words: Word) -> bytes:
    """One command."""
    return b"*%d\r\n%b" % (len(words), _packed(words))


def pack_call(call: Call) -> bytes:
    """A script, by its digest. What comes before and after its first argument is packed once."""
    script, keys, arguments = call
    if keys.__class__ is not Keys:  # seldom the same again
        return _begin("EVALSHA", script.sha, call) + keys.packed + _packed(arguments)
    known = (script.sha, keys.lock, arguments[1:])
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
    data = _word(arguments[0])
    return b"%b$%d\r\n%b\r\n%b" % (head, len(data), data, tail)


def pack_text(call: Call) -> bytes:
    """The same script by its text, for a server that does not know it yet, and will from then on."""
    return _begin("EVAL", call.script.text, call) + call.keys.packed + _packed(call.arguments)


def new_parser() -> Parser:
    """That of hiredis if it is there, as with redis-py itself."""
    if _hiredis is None or not hasattr(_hiredis.Reader, "has_data"):
        return PythonParser()
    parser: Parser = _hiredis.Reader(replyError=ErrorReply)
    return parser


class PythonParser:
    """What hiredis does, without it."""

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
        except IndexError:  # not all of it is there
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
                raise ValueError(f"no reply begins with {kind!r}")

    def _read_bytes(self, length: int) -> bytes | None:
        if length < 0:
            return None
        start, self._at = self._at, self._at + length + 2
        if self._at > len(self._data):
            raise IndexError
        return self._data[start : start + length]


def lone_message(data: bytes) -> bytes:
    """What a message says, if that is all there is: what a parser would find, in a tenth of the time."""
    match data.split(b"\r\n"):
        case [b"*3", _, b"message" | b"smessage", _, _, _, said, b""]:
            return said
        case _:
            return b""


def _find_hiredis() -> Any:
    try:
        return importlib.import_module("hiredis")
    except ImportError:
        return None


_hiredis = _find_hiredis()
_prepared: dict[tuple[str, str, tuple[Word, ...]], tuple[bytes, bytes]] = {}
# At most 4096 entries of 2 KiB, which is 16 MiB with the arguments by which they are found; some 2 MB where they are as
# large as usual. A lock with more meta than that is packed each time.
_PREPARED_MAX, _PREPARED_SIZE_MAX = 4096, 2048  # entries; bytes


def _begin(command: str, script: str, call: Call) -> bytes:
    keys = len(call.keys.names)
    return b"*%d\r\n%b" % (3 + keys + len(call.arguments), _packed((command, script, keys)))


def _packed(words: tuple[Word, ...]) -> bytes:
    """Each with its length, as they follow the number of words in a command."""
    parts = []
    for word in words:
        data = _word(word)
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _word(word: Word) -> bytes:
    return word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else b"%d" % word
