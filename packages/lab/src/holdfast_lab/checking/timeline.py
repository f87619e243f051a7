"""A history drawn as text: one row per client, time from left to right. For terminals, logs and issues."""

from __future__ import annotations

from collections.abc import Container, Sequence

from .checkers import Violation
from .history import Event
from .layout import Mark, MarkKind, Picture, Row, Span, SpanKind, lay_out, ticks

WIDTH = 100
_LABEL_MAX = 18
_TICK_WIDTH = 12  # columns between two times on the axis, approximately

_SPANS: dict[SpanKind, str] = {
    "waiting": "·",
    "holding": "█",
    "expired": "░",
    "paused": "=",
    "down": " ",
    "fault": "~",
}
_WHILE_PAUSED = {"·": ":", "█": "▓"}
_MARKS: dict[MarkKind, str] = {
    "gave up": "?",
    "lost": "!",
    "crashed": "×",
    "state lost": "F",
    "leftover": "R",
    "healed": "H",
    "wrote": "w",
    "refused": "r",
    "other": "",
}
_LEGEND = {
    "·": "waits",
    ":": "waits, paused",
    "█": "holds (fence)",
    "▓": "holds, paused",
    "░": "believes past its deadline",
    "=": "paused",
    "?": "gave up",
    "!": "lost",
    "×": "crashed",
    "~": "fault",
    "F": "server lost state",
    "R": "left on the server",
    "H": "healed",
    "w": "wrote",
    "r": "refused",
    "▲": "violation",
}


def timeline(history: Sequence[Event], violation: Violation | None = None, *, width: int = WIDTH) -> str:
    """The history, or the part of it around a violation, as text."""
    return draw(lay_out(history, violation), width=width)


def draw(picture: Picture, *, width: int = WIDTH) -> str:
    """The picture as lines of at most that many columns."""
    return _Canvas(picture, width).text()


class _Canvas:
    """Turns seconds into columns."""

    def __init__(self, picture: Picture, width: int) -> None:
        labels = [row.label for row in (*picture.faults, *picture.clients)] + ["violation"]
        self._picture = picture
        self._label_width = min(_LABEL_MAX, max(map(len, labels)))
        self._columns = max(20, width - self._label_width - 3)
        self._width = width
        self._used: set[str] = set()

    def text(self) -> str:
        picture = self._picture
        lines = [self._axis()]
        for row in picture.faults:
            lines += self._row(row)
        for row in picture.clients:
            lines += self._row(row)
        if picture.left_out:
            lines.append(f"{'':>{self._label_width}}   … and {picture.left_out} more clients")
        if picture.violation is not None:
            lines.append(self._violation(picture.violation))
        lines += self._legend()
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _column(self, at: float) -> int:
        share = (at - self._picture.start) / (self._picture.end - self._picture.start)
        return max(0, min(self._columns - 1, int(share * self._columns)))

    def _axis(self) -> str:
        cells = [" "] * self._columns
        for at, label in ticks(self._picture.start, self._picture.end, self._columns // _TICK_WIDTH):
            column = self._column(at)
            if column + len(label) + 1 < self._columns:
                _write(cells, column, f"│{label}")
        return self._line("seconds", cells)

    def _row(self, row: Row) -> list[str]:
        lines = []
        for number, lane in enumerate(row.lanes):
            cells = [" "] * self._columns
            for span in row.states:
                self._paint(cells, span)
            paused = {index for index, cell in enumerate(cells) if cell == _SPANS["paused"]}
            # A hold is painted after waits, so that a short hold is not hidden by a wait in the same column.
            for span in sorted(lane, key=lambda span: span.kind != "waiting"):
                self._paint(cells, span, paused)
            if number == 0:
                for mark in sorted(row.marks, key=lambda mark: (mark.is_involved, mark.kind in ("lost", "crashed"))):
                    self._put(cells, mark)
            self._used.update(cells)
            for span in lane:
                self._label(cells, span)
            lines.append(self._line(row.label if number == 0 else "", cells))
        return lines

    def _paint(self, cells: list[str], span: Span, paused: Container[int] = ()) -> None:
        first = self._column(span.start)
        last = max(first + 1, self._column(span.end))
        if span.end >= self._picture.end:
            last = self._columns
        char = _SPANS[span.kind]
        for column in range(first, last):
            cells[column] = _WHILE_PAUSED.get(char, char) if column in paused else char

    def _label(self, cells: list[str], span: Span) -> None:
        """Write the fence into its bar, if the bar is long enough and not painted over."""
        first = self._column(span.start)
        inside = cells[first : self._column(span.end)]
        char = _SPANS[span.kind]
        if span.label and inside[: len(span.label) + 2].count(char) == len(span.label) + 2:
            _write(cells, first + 1, span.label)

    def _put(self, cells: list[str], mark: Mark) -> None:
        char = _MARKS[mark.kind]
        # A mark for every write would hide the bars, so only writes in the violation are marked.
        if char and (mark.is_involved or mark.kind not in ("wrote", "refused")):
            cells[self._column(mark.at)] = char

    def _violation(self, violation: Violation) -> str:
        cells = [" "] * self._columns
        column = self._column(violation.at)
        label = f"{violation.at:g} s"
        _write(cells, column + 2 if column + 2 + len(label) < self._columns else column - 1 - len(label), label)
        cells[column] = "▲"
        self._used.add("▲")
        return self._line("violation", cells)

    def _line(self, label: str, cells: list[str]) -> str:
        short = label if len(label) <= self._label_width else label[: self._label_width - 1] + "…"
        return f"{short:>{self._label_width}} │ {''.join(cells)}"

    def _legend(self) -> list[str]:
        lines = [""]
        for char, meaning in _LEGEND.items():
            if char in self._used:
                entry = f"{char} {meaning}"
                if lines[-1] and len(lines[-1]) + len(entry) + 3 > self._width - self._label_width - 3:
                    lines.append("")
                lines[-1] += ("   " if lines[-1] else "") + entry
        return [f"{'':>{self._label_width}}   {line}" for line in lines]


def _write(cells: list[str], column: int, text: str) -> None:
    for offset, char in enumerate(text):
        if 0 <= column + offset < len(cells):
            cells[column + offset] = char
