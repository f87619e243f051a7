"""Plots: dots on a logarithmic scale, and lines. Log scales show ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.svg import Drawing
from benchmarks.table import number

WIDTH = 820
LABELS = 188  # for the names on the left
MARGIN = 20
VALUES = 92  # for the figures on the right of a panel
ROW = 24
TOP = 74


@dataclass(frozen=True)
class Mark:
    """One contender in one panel."""

    label: str
    kind: str  # "ours", "peer", "bad"
    dot: float
    ring: float | None = None
    low: float | None = None  # the range of the rounds: from here …
    high: float | None = None  # … to here


@dataclass(frozen=True)
class Dots:
    """One panel. Rows are in the order of the first panel, best first."""

    title: str
    marks: Sequence[Mark]
    base: float | None = None  # a line to compare with


def dots(title: str, panels: Sequence[Dots]) -> str:
    """Draw panels side by side, with a row per contender."""
    order = [mark.label for mark in sorted(panels[0].marks, key=lambda mark: mark.dot)]
    kinds = {mark.label: mark.kind for mark in panels[0].marks}
    height = TOP + ROW * len(order) + 34
    drawing = Drawing(WIDTH, height, title)
    drawing.text(MARGIN, 28, title, kind="title")
    for row, label in enumerate(order):
        drawing.text(LABELS, _row(row) + 4, label, kind=kinds[label], anchor="end")
    width = (WIDTH - LABELS - MARGIN) / len(panels)
    for column, panel in enumerate(panels):
        left = LABELS + 14 + column * width
        _panel(drawing, panel, order, left, left + width - VALUES - 14)
    return drawing.to_svg()


def _panel(drawing: Drawing, panel: Dots, order: list[str], left: float, right: float) -> None:
    values = [
        value for mark in panel.marks for value in (mark.dot, mark.ring, mark.low, mark.high) if value is not None
    ]
    scale = _Log(values, left, right)
    bottom = _row(len(order) - 1) + ROW / 2
    drawing.text(left, 52, panel.title, kind="small")
    for value in scale.ticks():
        drawing.line(scale(value), TOP - 12, scale(value), bottom, "grid")
        drawing.text(scale(value), bottom + 16, _tick(value), kind="small", anchor="middle")
    if panel.base is not None:
        drawing.line(scale(panel.base), TOP - 12, scale(panel.base), bottom, "base")
    marks = {mark.label: mark for mark in panel.marks}
    for row, label in enumerate(order):
        if label not in marks:
            continue
        mark, y = marks[label], _row(row)
        if mark.low is not None and mark.high is not None:
            drawing.line(scale(mark.low), y, scale(mark.high), y, f"{mark.kind} range")
        shown = number(mark.dot)
        if mark.ring is not None:
            drawing.line(scale(mark.dot), y, scale(mark.ring), y, mark.kind)
            drawing.dot(scale(mark.ring), y, f"{mark.kind} ring", 4)
            shown += f" · {number(mark.ring)}"
        drawing.dot(scale(mark.dot), y, mark.kind)
        drawing.text(right + 14, y + 4, shown, kind="small")


@dataclass(frozen=True)
class Line:
    """One contender: points from left to right."""

    label: str
    kind: str
    points: Sequence[tuple[float, float]]


def lines(title: str, subtitle: str, series: Sequence[Line]) -> str:
    """Draw lines on two logarithmic scales, with the names at their ends."""
    height = 380
    drawing = Drawing(WIDTH, height, title)
    drawing.text(MARGIN, 28, title, kind="title")
    drawing.text(MARGIN, 50, subtitle, kind="small")
    left, right, top, bottom = 64.0, WIDTH - 190.0, float(TOP), height - 34.0
    across = _Log([x for line in series for x, _ in line.points], left, right, whole=False)
    up = _Log([y for line in series for _, y in line.points], bottom, top)
    for value in up.ticks():
        drawing.line(left, up(value), right, up(value), "grid")
        drawing.text(left - 8, up(value) + 4, _tick(value), kind="small", anchor="end")
    for value in sorted({x for line in series for x, _ in line.points}):
        drawing.text(across(value), bottom + 20, f"{value:,.0f}", kind="small", anchor="middle")
    ordered = sorted(series, key=lambda line: line.kind == "ours")  # ours on top
    for line in ordered:
        points = [(across(x), up(y)) for x, y in line.points]
        drawing.path(points, line.kind)
        for x, y in points:
            drawing.dot(x, y, line.kind, 4)
    for x in {line.points[-1][0] for line in series}:
        ending = {line.label: line for line in series if line.points[-1][0] == x}
        heights = {label: up(line.points[-1][1]) for label, line in ending.items()}
        for label, y in _apart(heights).items():
            drawing.text(across(x) + 12, y + 4, label, kind=ending[label].kind)
    return drawing.to_svg()


@dataclass(frozen=True)
class Rows:
    """One panel with several marks in a row."""

    title: str
    rows: Mapping[str, Sequence[Mark]]


def rows(title: str, panels: Sequence[Rows], order: Sequence[str]) -> str:
    """Draw panels side by side, with a row per label and all of its marks in it. Figures are those of ours."""
    height = TOP + ROW * len(order) + 56
    drawing = Drawing(WIDTH, height, title)
    drawing.text(MARGIN, 28, title, kind="title")
    labels = 140
    for row, label in enumerate(order):
        drawing.text(labels, _row(row) + 4, label, kind="peer", anchor="end")
    width = (WIDTH - labels - MARGIN) / len(panels)
    bottom = _row(len(order) - 1) + ROW / 2
    for column, panel in enumerate(panels):
        left = labels + 14 + column * width
        right = left + width - 72
        values = [mark.dot for marks in panel.rows.values() for mark in marks]
        scale = _Log(values, left, right)
        drawing.text(left, 52, panel.title, kind="small")
        for value in scale.ticks():
            drawing.line(scale(value), TOP - 12, scale(value), bottom, "grid")
            drawing.text(scale(value), bottom + 16, _tick(value), kind="small", anchor="middle")
        for row, label in enumerate(order):
            for mark in sorted(panel.rows.get(label, ()), key=lambda mark: mark.kind == "ours"):  # ours on top
                drawing.dot(scale(mark.dot), _row(row), mark.kind, 5.5 if mark.kind == "ours" else 4)
                if mark.kind == "ours":
                    drawing.text(right + 12, _row(row) + 4, number(mark.dot), kind="ours")
    legend = height - 14
    drawing.dot(labels + 14, legend - 4, "ours", 5.5)
    drawing.text(labels + 24, legend, "holdfast, with its figure", kind="small")
    drawing.dot(labels + 194, legend - 4, "peer", 4)
    drawing.text(labels + 204, legend, "a lock of another library on the same store", kind="small")
    return drawing.to_svg()


def _row(row: int) -> float:
    return TOP + ROW * row + 6


class _Log:
    """Map values to pixels on a logarithmic scale, by whole decades by default."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, whole: bool = True) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = math.log10(min(positive)), math.log10(max(positive))
        if whole:
            low, high = math.floor(low), math.ceil(high)
        self._low, self._high = low, max(high, low + 1)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low) if value > 0 else 0.0  # 0 is at the edge
        return self._start + (self._end - self._start) * share

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(math.ceil(self._low), math.floor(self._high) + 1)]


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _apart(heights: dict[str, float], least: float = 15.0) -> dict[str, float]:
    """Move labels apart vertically where they would overlap, and centre the result."""
    placed: dict[str, float] = {}
    last = -math.inf
    for label, height in sorted(heights.items(), key=lambda item: item[1]):
        last = max(height, last + least)
        placed[label] = last
    moved = max((placed[label] - heights[label] for label in heights), default=0.0)
    return {label: height - moved / 2 for label, height in placed.items()}
