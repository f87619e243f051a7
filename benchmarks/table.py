"""Tables in plain text and in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

WIDTH = 110  # assumed width of a terminal

Mark = Literal["ours", "broken"] | None
_COLORS = {"ours": "1", "broken": "1;31"}  # bold; bold red


@dataclass
class Row:
    """Cells, or fewer cells and a remark in place of the rest."""

    cells: list[str]
    remark: str | None = None
    mark: Mark = None


@dataclass
class Table:
    """The first `words` columns are text, the others are figures."""

    title: str
    headings: Sequence[str]  # in up to two lines
    rows: list[Row] = field(default_factory=list)
    words: int = 1  # number of text columns, from the left
    notes: list[str] = field(default_factory=list)

    def to_text(self, *, color: bool = False) -> str:
        """For a terminal."""
        heads = [(*heading.split("\n"), "")[:2] for heading in self.headings]
        full = [row.cells for row in self.rows if row.remark is None]
        names = [row.cells[0] for row in self.rows]
        widths = [
            max(
                *map(len, head),
                *(len(cells[number]) for cells in full),
                *((len(name) for name in names) if number == 0 else ()),
                0,
            )
            for number, head in enumerate(heads)
        ]
        lines = [self.title]
        lines += [
            self._line([head[part] for head in heads], widths)
            for part in (0, 1)
            if part == 0 or any(head[1] for head in heads)
        ]
        lines.append("─" * max(map(len, lines[1:])))
        for row in self.rows:
            line = self._line(row.cells, widths)
            if row.remark is not None:
                line = f"{line}  {row.remark}"
            lines.append(f"\x1b[{_COLORS[row.mark]}m{line}\x1b[0m" if color and row.mark else line)
        for note in self.notes:
            lines += textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def to_markdown(self) -> str:
        """For a document. Our rows are bold."""
        lines = [f"**{_escape(self.title)}**", ""]
        lines.append(f"| {' | '.join(_escape(heading.replace(chr(10), ' ').strip()) for heading in self.headings)} |")
        lines.append("|" + "".join("---|" if number < self.words else "--:|" for number in range(len(self.headings))))
        for row in self.rows:
            cells = [_escape(cell) for cell in row.cells]
            if row.remark is not None:
                cells.append(_escape(row.remark))
            cells += [""] * (len(self.headings) - len(cells))
            if row.mark:
                cells[0] = f"**{cells[0]}**"
            lines.append(f"| {' | '.join(cells)} |")
        for note in self.notes:
            lines += ["", _escape(note)]
        return "\n".join(lines) + "\n"

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = [
            cell.ljust(width) if number < self.words else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        return "  ".join(padded)


def number(value: float | None, *, plain: bool = False) -> str:
    """Format with three significant digits, without exponents; "-" for None."""
    if value is None:
        return "-"
    if plain or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if abs(value) >= 0.995 or value == 0:
        return f"{value:.2f}" if value else "0"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.4f}"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
