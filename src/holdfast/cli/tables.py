"""Tables that fit the terminal. If a table is too wide, cells are shortened, then columns dropped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.cli.terminal import Terminal
from holdfast.cli.text import escape, width

GAP = 2
_ANY = sys.maxsize  # columns


class Column(NamedTuple):
    """A heading, and how the column behaves when the table is too wide."""

    heading: str
    align_right: bool = False  # for numbers
    flexible: bool = False  # cells may be shortened, but not to less than `min_width`
    min_width: int = 10
    drop_order: int = 0  # columns are dropped in this order; 0: never


def draw(columns: Sequence[Column], rows: Sequence[Sequence[str]], terminal: Terminal) -> list[str]:
    """Return the heading and the rows as lines that fit the terminal, as far as possible."""
    lines = zip(*(cells for _, cells in fit_columns(columns, rows, terminal)), strict=True)
    return [terminal.fit((" " * GAP).join(line).rstrip(), terminal.columns) for line in lines]


def fit_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], terminal: Terminal
) -> list[tuple[Column, list[str]]]:
    """Return the columns that fit the terminal, each with its heading and cells, of equal width.

    All cells are escaped here, so that no table sends control characters to a terminal.
    """
    layouts = [
        _ColumnLayout(column, [column.heading, *(terminal.fit(escape(row[index]), _ANY) for row in rows)])
        for index, column in enumerate(columns)
    ]
    layouts = [layout for layout in layouts if layout.has_content or not _can_drop(layout)]
    while sum(layout.min_width + GAP for layout in layouts) - GAP > terminal.columns and any(map(_can_drop, layouts)):
        layouts.remove(min(filter(_can_drop, layouts), key=lambda layout: layout.column.drop_order))
    _shrink(layouts, terminal.columns)
    return [(layout.column, layout.fitted(terminal)) for layout in layouts]


class _ColumnLayout:
    """A column with its cells; the first cell is the heading."""

    def __init__(self, column: Column, cells: list[str]) -> None:
        self.column = column
        self._cells = cells
        self.width = max(map(width, cells))
        self.min_width = min(self.width, column.min_width) if column.flexible else self.width
        self.has_content = any(cells[1:])

    def fitted(self, terminal: Terminal) -> list[str]:
        return [self._padded(terminal.fit(cell, self.width)) for cell in self._cells]

    def _padded(self, cell: str) -> str:
        blank = " " * (self.width - width(cell))
        return blank + cell if self.column.align_right else cell + blank


def _can_drop(layout: _ColumnLayout) -> bool:
    return layout.column.drop_order > 0


def _shrink(layouts: Sequence[_ColumnLayout], room: int) -> None:
    """Shorten the widest flexible column, one character at a time, until the table fits."""
    for _ in range(sum(layout.width + GAP for layout in layouts) - GAP - room):
        shrinkable = [layout for layout in layouts if layout.width > layout.min_width]
        if not shrinkable:
            return
        max(shrinkable, key=lambda layout: layout.width).width -= 1
