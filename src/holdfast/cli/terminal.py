"""The capabilities of an output stream: cursor movement, colours, character set, size."""

from __future__ import annotations

import os
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

    @classmethod
    def of(cls, stream: TextIO) -> Terminal:
        """Read them from the stream and from $TERM and $NO_COLOR (no-color.org)."""
        can_move_cursor = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        return cls(
            can_move_cursor=can_move_cursor,
            has_color=can_move_cursor and not os.environ.get("NO_COLOR"),
            has_unicode=_can_encode(stream.encoding or "ascii"),  # a StringIO has none
            columns=_columns(stream) if can_move_cursor else _wanted_columns(),
        )

    def fit(self, text: str, columns: int) -> str:
        """Encode the text for this stream and shorten it to `columns`."""
        known = text if self.has_unicode else text.encode("ascii", "backslashreplace").decode()
        return shorten(known, columns, ellipsis="…" if self.has_unicode else "~")

    def paint(self, text: str, *codes: int) -> str:
        """Add SGR codes to the text, if the stream has colours."""
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.has_color and codes else text


def _wanted_columns() -> int:
    """Return $COLUMNS, for output that is not a terminal."""
    wanted = os.environ.get("COLUMNS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else WIDTH_MAX


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH_MAX  # 0 means unknown
    except OSError:
        return WIDTH_MAX


def _can_encode(encoding: str) -> bool:
    try:
        _UNICODE.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
