"""What the place that output goes to can show: escape codes, colours, which characters, how many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from holdfast.cli.text import shorten

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
        columns, lines = _size(stream) if can_move else (_wanted_columns(), 0)
        return cls(
            can_move=can_move,
            has_color=can_move and not os.environ.get("NO_COLOR"),
            has_unicode=_can_encode(stream.encoding),
            columns=columns,
            lines=lines,
        )

    def fit(self, text: str, columns: int) -> str:
        """The text in characters that this output has, shortened to that many columns."""
        known = text if self.has_unicode else text.encode("ascii", "backslashreplace").decode()
        return shorten(known, columns, ellipsis="…" if self.has_unicode else "~")

    def paint(self, text: str, *codes: int) -> str:
        """The text in colours (SGR codes), or as it is."""
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.has_color and codes else text


class Picture:
    """Lines that are drawn again and again in the same place.

    The cursor stays visible and rests below them, so there is nothing to restore however the process ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0

    def draw(self, lines: Sequence[str]) -> None:
        """In place of what was drawn before. No line may be wider than the terminal."""
        up = f"\x1b[{self._height}A" if self._height else ""
        # Each line clears what is left of the one before it. One write, so that nothing flickers.
        self._stream.write("\r" + up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._stream.flush()
        self._height = len(lines)

    def end(self, lines: Sequence[str]) -> None:
        """Leave it in sight, and these lines below it, in place of a `^C` that the terminal wrote there."""
        self._stream.write("\r\x1b[K" + "".join(f"{line}\n" for line in lines))
        self._stream.flush()


def _wanted_columns() -> int:
    """$COLUMNS, where no terminal says how wide it is."""
    wanted = os.environ.get("COLUMNS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else WIDTH_MAX


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
