"""The capabilities of an output stream: cursor movement, colours, character set, size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from holdfast.cli.text import shorten

WIDTH_MAX = 80
_UNICODE = "·…─×"


class Terminal(NamedTuple):
    """The capabilities of one stream."""

    can_move_cursor: bool  # False: print plain lines without escape codes
    has_color: bool
    has_unicode: bool
    columns: int
    lines: int

    @classmethod
    def of(cls, stream: TextIO) -> Terminal:
        """Read them from the stream and from $TERM and $NO_COLOR (no-color.org)."""
        can_move_cursor = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        columns, lines = _size(stream) if can_move_cursor else (_wanted_columns(), 0)
        return cls(
            can_move_cursor=can_move_cursor,
            has_color=can_move_cursor and not os.environ.get("NO_COLOR"),
            has_unicode=_can_encode(stream.encoding or "ascii"),  # a StringIO has none
            columns=columns,
            lines=lines,
        )

    def fit(self, text: str, columns: int) -> str:
        """Encode the text for this stream and shorten it to `columns`."""
        known = text if self.has_unicode else text.encode("ascii", "backslashreplace").decode()
        return shorten(known, columns, ellipsis="…" if self.has_unicode else "~")

    def paint(self, text: str, *codes: int) -> str:
        """Add SGR codes to the text, if the stream has colours."""
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.has_color and codes else text


class Display:
    """Lines that are redrawn in place.

    The cursor stays visible below the lines, so the terminal needs no clean-up when the process ends or is killed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines drawn before. No line may be wider than the terminal."""
        up = f"\x1b[{self._height}A" if self._height else ""
        # Each line clears the rest of the old one. A single write avoids flicker.
        self._stream.write("\r" + up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._stream.flush()
        self._height = len(lines)

    def end(self, lines: Sequence[str]) -> None:
        """Keep the lines on screen and print these below them, over a `^C` that the terminal has echoed."""
        self._stream.write("\r\x1b[K" + "".join(f"{line}\n" for line in lines))
        self._stream.flush()


def _wanted_columns() -> int:
    """Return $COLUMNS, for output that is not a terminal."""
    wanted = os.environ.get("COLUMNS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else WIDTH_MAX


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return WIDTH_MAX, 24
    return size.columns or WIDTH_MAX, size.lines or 24  # 0 means unknown


def _can_encode(encoding: str) -> bool:
    try:
        _UNICODE.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
