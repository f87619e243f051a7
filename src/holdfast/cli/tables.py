"""Tables that fit: columns are as wide as what is in them; if that is too wide they give way, then go."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.cli.terminal import Terminal
from holdfast.cli.text import escape, width

GAP = 2
_FLEXIBLE_MIN = 10
_ANY = sys.maxsize  # columns


class Column(NamedTuple):
    """A heading, and how the column behaves when there is not enough room."""

    heading: str
    right: bool = False  # numbers end below each other
    flexible: bool = False  # its cells may be shortened
    goes: int = 0  # may be left out, the lowest number first; 0: never


def draw(columns: Sequence[Column], rows: Sequence[Sequence[str]], terminal: Terminal) -> list[str]:
    """The heading and the rows, as lines that fit this terminal as far as that can be done.

    Cells are escaped here, whatever was done to them before: nothing in a table reaches a terminal as a code.
    """
    strips = [
        _Strip(column, [column.heading, *(terminal.fit(escape(row[index]), _ANY) for row in rows)])
        for index, column in enumerate(columns)
    ]
    strips = [strip for strip in strips if strip.says_anything or not _may_go(strip)]
    while sum(strip.least + GAP for strip in strips) - GAP > terminal.columns and any(map(_may_go, strips)):
        strips.remove(min(filter(_may_go, strips), key=lambda strip: strip.column.goes))
    _shrink(strips, terminal.columns)
    lines = zip(*(strip.fitted(terminal) for strip in strips), strict=True)
    return [terminal.fit((" " * GAP).join(line).rstrip(), terminal.columns) for line in lines]


class _Strip:
    """A column with its cells, the heading among them."""

    def __init__(self, column: Column, cells: list[str]) -> None:
        self.column = column
        self._cells = cells
        self.width = max(map(width, cells))
        self.least = min(self.width, _FLEXIBLE_MIN) if column.flexible else self.width
        self.says_anything = any(cells[1:])

    def fitted(self, terminal: Terminal) -> list[str]:
        return [self._padded(terminal.fit(cell, self.width)) for cell in self._cells]

    def _padded(self, cell: str) -> str:
        blank = " " * (self.width - width(cell))
        return blank + cell if self.column.right else cell + blank


def _may_go(strip: _Strip) -> bool:
    return strip.column.goes > 0


def _shrink(strips: Sequence[_Strip], room: int) -> None:
    """Until they fit: the widest that can give way does so first."""
    for _ in range(sum(strip.width + GAP for strip in strips) - GAP - room):
        giving = [strip for strip in strips if strip.width > strip.least]
        if not giving:
            return
        max(giving, key=lambda strip: strip.width).width -= 1
