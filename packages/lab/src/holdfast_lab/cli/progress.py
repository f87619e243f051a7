"""Progress on stderr: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Self, TextIO

from holdfast.cli.terminal import Terminal

_BAR = 24  # columns
_FRAME, _LINE = 0.1, 10.0  # seconds between two updates


class Progress:
    """The progress of one search; cleared at the end of the `with` block."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = Terminal.of(self._stream)
        self._display = _Display(self._stream) if self._terminal.can_move_cursor else None
        self._next = time.monotonic() + (0.0 if self._display else _LINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the bar, before a result is printed."""
        if self._display is not None:
            self._display.draw([])

    def show(self, noun: str, done: int, of: int | None, more: str = "") -> None:
        """Show the progress, if the last update is old enough."""
        now = time.monotonic()
        if now < self._next:
            return
        count = f"{done:,}" if of is None else f"{done:,} of {of:,}"
        line = f"{noun}: {count}{f', {more}' if more else ''}"
        if self._display is None:
            self._next = now + _LINE
            print(self._terminal.fit(line, self._terminal.columns), file=self._stream, flush=True)
            return
        self._next = now + _FRAME
        bar = "" if of is None else self._bar(done / of if of else 1.0) + " "
        self._display.draw([self._terminal.fit(bar + line, self._terminal.columns - 1)])

    def _bar(self, share: float) -> str:
        full = round(min(1.0, share) * _BAR)
        signs = ("█", "░") if self._terminal.has_unicode else ("#", "-")
        return signs[0] * full + signs[1] * (_BAR - full)


class _Display:
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
