"""A history drawn as SVG: one row per client, faults above, tooltips, the violation in red; for light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from .checkers import Violation
from .history import Event
from .layout import Mark, Picture, Row, Span, lay_out, ticks

WIDTH = 1000
_LEFT, _RIGHT = 132, 24
_LANE = 24  # the height of a lane
_BAR = 14  # the height of a bar in a lane
_LABEL_MAX = 16
_TITLE_MAX = 120
_TICKS = 8
_DIGIT = 7.0  # about the width of a digit in a bar

_STYLE = """
svg { color-scheme: light dark; }
.paper { fill: #ffffff; } .stripe { fill: #f4f6f8; } .grid { stroke: #dde2e8; }
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2933; }
.title { font-size: 15px; font-weight: 600; } .faint { fill: #66727f; } .bar-label { font-size: 11px; fill: #ffffff; }
.waiting { fill: #b8c4d0; } .holding { fill: #2f7d5b; } .expired { fill: #e0a03a; } .fault { fill: #c9b6e4; }
.paused { fill: url(#stripes); } .stripes { stroke: #ffffff; } .down { fill: #39424e; fill-opacity: .25; }
.involved { stroke: #d33a2f; stroke-width: 2; } .mark { fill: #1f2933; font-size: 12px; font-weight: 700; }
.mark.hot { fill: #d33a2f; } .violation { stroke: #d33a2f; stroke-width: 1.5; stroke-dasharray: 4 3; }
.hot { fill: #d33a2f; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14181d; } .stripe { fill: #1b2127; } .grid { stroke: #2c343d; }
  text { fill: #dfe5eb; } .faint { fill: #93a0ad; } .bar-label { fill: #0f1418; }
  .waiting { fill: #4a5866; } .holding { fill: #4fb587; } .expired { fill: #e0a03a; } .fault { fill: #6f5a94; }
  .stripes { stroke: #14181d; } .down { fill: #000000; fill-opacity: .5; }
  .involved, .violation { stroke: #ff6b5e; } .mark { fill: #dfe5eb; } .mark.hot, .hot { fill: #ff6b5e; }
}
"""
# Drawn over the bars, so that the client's state during the pause stays visible.
_STRIPES = (
    '<defs><pattern id="stripes" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="#8fa3b8" fill-opacity=".3"/>'
    '<path class="stripes" d="M0 0V7" stroke-width="4" stroke-opacity=".6"/></pattern></defs>'
)
_LEGEND = (
    ("waiting", "waits"),
    ("holding", "holds (fence)"),
    ("expired", "believes past its deadline"),
    ("paused", "paused"),
    ("down", "down"),
    ("fault", "fault"),
)
_MARKS = {
    "gave up": "?",
    "lost": "!",
    "crashed": "✕",
    "state lost": "✂",
    "leftover": "◆",
    "healed": "✓",
    "wrote": "▾",
    "refused": "▿",
    "other": "▾",
}


def svg(history: Sequence[Event], violation: Violation | None = None, *, title: str | None = None) -> str:
    """The history, or the part of it around a violation, as an SVG document."""
    return draw(lay_out(history, violation), title=title)


def draw(picture: Picture, *, title: str | None = None) -> str:
    """The picture as an SVG document."""
    return "\n".join(_Drawing(picture, title).lines()) + "\n"


class _Drawing:
    """Turns seconds into pixels."""

    def __init__(self, picture: Picture, title: str | None) -> None:
        self._picture = picture
        violation = picture.violation
        self._title = title or (violation.message if violation is not None else "history")
        self._subtitle = f"Promised: {violation.promise}" if violation is not None else ""
        self._rows = (*picture.faults, *picture.clients)
        self._top = 74 if self._subtitle else 54
        self._bottom = self._top + sum(_LANE * len(row.lanes) for row in self._rows)
        self._scale = (WIDTH - _LEFT - _RIGHT) / (picture.end - picture.start)

    def lines(self) -> Iterator[str]:
        height = self._bottom + 64
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="{_escaped(self._title)}">'
        )
        yield f"<style>{_STYLE}</style>"
        yield _STRIPES
        yield f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>'
        yield _text(16, 26, _cut(self._title, _TITLE_MAX), "title")
        if self._subtitle:
            yield _text(16, 45, _cut(self._subtitle, _TITLE_MAX + 20), "faint")
        y = self._top
        for number, row in enumerate(self._rows):
            if number % 2 == 0:
                yield f'<rect class="stripe" x="0" y="{y}" width="{WIDTH}" height="{_LANE * len(row.lanes)}"/>'
            y += _LANE * len(row.lanes)
        yield from self._axis()
        y = self._top
        for row in self._rows:
            yield from self._row(row, y)
            y += _LANE * len(row.lanes)
        yield from self._violation()
        yield from self._legend()
        yield "</svg>"

    def _x(self, at: float) -> float:
        return round(_LEFT + (at - self._picture.start) * self._scale, 1)

    def _axis(self) -> Iterator[str]:
        for at, label in ticks(self._picture.start, self._picture.end, _TICKS):
            x = self._x(at)
            yield f'<line class="grid" x1="{x}" y1="{self._top - 4}" x2="{x}" y2="{self._bottom}"/>'
            yield _text(x, self._top - 8, f"{label} s", "faint", anchor="middle")

    def _row(self, row: Row, y: int) -> Iterator[str]:
        yield _text(_LEFT - 12, y + 16, _cut(row.label, _LABEL_MAX), anchor="end", title=row.label)
        for number, lane in enumerate(row.lanes):
            middle = y + number * _LANE + (_LANE - _BAR) // 2
            for span in lane:
                is_thin = span.kind == "waiting"
                yield self._bar(span, middle + 4 * is_thin, _BAR - 8 * is_thin)
                if span.label and (self._x(span.end) - self._x(span.start)) > _DIGIT * len(span.label) + 6:
                    css = "bar-label" if span.kind == "holding" else "faint"
                    yield _text(self._x(span.start) + 4, middle + 11, span.label, css)
        for span in row.states:
            yield self._bar(span, y + 3, _LANE * len(row.lanes) - 6)
        for mark in row.marks:
            yield self._mark(mark, y + 17)

    def _bar(self, span: Span, y: float, height: float) -> str:
        x = self._x(span.start)
        width = max(1.5, round(self._x(span.end) - x, 1))
        css = f"{span.kind} involved" if span.is_involved else span.kind
        title = f"<title>{_escaped(span.title)}</title>"
        return f'<rect class="{css}" x="{x}" y="{y}" width="{width}" height="{height}" rx="3">{title}</rect>'

    def _mark(self, mark: Mark, y: float) -> str:
        css = "mark hot" if mark.is_involved or mark.kind in ("lost", "crashed", "state lost") else "mark"
        return _text(self._x(mark.at), y, _MARKS[mark.kind], css, anchor="middle", title=mark.title)

    def _violation(self) -> Iterator[str]:
        violation = self._picture.violation
        if violation is None:
            return
        x = self._x(min(max(violation.at, self._picture.start), self._picture.end))
        title = f"<title>{_escaped(violation.message)}</title>"
        yield f'<line class="violation" x1="{x}" y1="{self._top - 4}" x2="{x}" y2="{self._bottom + 6}">{title}</line>'
        anchor = "end" if x > WIDTH / 2 else "start"
        label = f"{violation.checker} broken at {violation.at:g} s"
        yield _text(x, self._bottom + 20, label, "hot", anchor=anchor, title=violation.message)

    def _legend(self) -> Iterator[str]:
        used = {span.kind for row in self._rows for lane in (*row.lanes, row.states) for span in lane}
        x, y = _LEFT, self._bottom + 36
        for kind, meaning in _LEGEND:
            if kind in used:
                yield f'<rect class="{kind}" x="{x}" y="{y}" width="14" height="10" rx="2"/>'
                yield _text(x + 20, y + 9, meaning, "faint")
                x += 44 + round(6.4 * len(meaning))
        if self._picture.left_out:
            yield _text(x, y + 9, f"… and {self._picture.left_out} more clients", "faint")


def _text(x: float, y: float, text: str, css: str = "", *, anchor: str = "", title: str = "") -> str:
    attributes = f' class="{css}"' if css else ""
    attributes += f' text-anchor="{anchor}"' if anchor else ""
    tooltip = f"<title>{_escaped(title)}</title>" if title else ""
    return f'<text x="{x}" y="{y}"{attributes}>{_escaped(text)}{tooltip}</text>'


def _escaped(text: str) -> str:
    """Return the text for an element or a quoted attribute. XML does not allow some characters even escaped."""
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
