"""The table of primitives per backend: `yes`, or the number of the reason why the primitive is missing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from holdfast.cli.tables import GAP, Column, draw
from holdfast.cli.terminal import Terminal
from holdfast.primitives import Lacks, Primitive

_YES = "yes"


def as_dict(lacks: Lacks) -> dict[str, bool | str]:
    """Return the JSON object: True or the reason, for each primitive."""
    return {primitive.value: lacks.get(primitive, True) for primitive in Primitive}


def grid(rows: Sequence[tuple[str, Lacks | None]], terminal: Terminal) -> list[str]:
    """Return one line per row (an empty one for None), split into several tables if the terminal is too narrow."""
    numbers: dict[str, int] = {}  # reasons, numbered in the order of their first use
    for _, lacks in rows:
        for primitive in Primitive:
            if lacks and primitive in lacks:
                numbers.setdefault(lacks[primitive], len(numbers) + 1)

    def cell(lacks: Lacks | None, primitive: Primitive) -> str:
        if lacks is None:
            return ""
        return str(numbers[lacks[primitive]]) if primitive in lacks else _YES

    lines: list[str] = []
    for part in _parts(terminal.columns - max(len(name) for name, _ in rows)):
        columns = [Column("backend"), *(Column(primitive.value) for primitive in part)]
        cells = [[name, *(cell(lacks, primitive) for primitive in part)] for name, lacks in rows]
        lines += [*draw(columns, cells, terminal), ""]
    return [*lines[:-1], *(line for reason, number in numbers.items() for line in _note(number, reason, terminal))]


def _parts(room: int) -> list[list[Primitive]]:
    """Split the primitives into groups that fit in `room` columns."""
    parts: list[list[Primitive]] = [[]]
    columns_left = room
    for primitive in Primitive:
        wanted = GAP + len(primitive.value)
        if wanted > columns_left and parts[-1]:
            parts.append([])
            columns_left = room
        parts[-1].append(primitive)
        columns_left -= wanted
    return parts


def _note(number: int, reason: str, terminal: Terminal) -> Sequence[str]:
    return textwrap.wrap(f"{number}: {reason}", terminal.columns, subsequent_indent=" " * (len(str(number)) + 2))
