"""What the place that output goes to can show: escape codes, colours, which characters, how many."""

from __future__ import annotations

import os
from typing import NamedTuple, TextIO

WIDTH_MAX = 80
_UNICODE = "·…─×"


class Terminal(NamedTuple):
    """What one output can show."""

    can_move: bool  # a terminal whose cursor can be moved; otherwise plain lines, without any escape code
    has_color: bool
    has_unicode: bool
    columns: int
    lines: int

    @classmethod
    def of(cls, stream: TextIO) -> Terminal:
        """Ask the stream and the environment: TERM and NO_COLOR (see no-color.org)."""
        can_move = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        columns, lines = _size(stream) if can_move else (WIDTH_MAX, 0)
        return cls(
            can_move=can_move,
            has_color=can_move and not os.environ.get("NO_COLOR"),
            has_unicode=_can_encode(stream.encoding),
            columns=columns,
            lines=lines,
        )

    def paint(self, text: str, *codes: int) -> str:
        """The text in colours (SGR codes), or as it is."""
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.has_color and codes else text


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return WIDTH_MAX, 24
    return size.columns or WIDTH_MAX, size.lines or 24  # a terminal that does not know says 0


def _can_encode(encoding: str) -> bool:
    try:
        _UNICODE.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
