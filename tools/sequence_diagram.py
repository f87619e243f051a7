"""Draws a sequence diagram in the syntax of Mermaid as SVG, for the documentation site.

A code host draws these diagrams itself. Mermaid's own script would have to be loaded from elsewhere. This is the part
of its syntax that our pages use: participants, messages, frames (loop, alt, opt, par) and notes.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from html import escape

PARTICIPANT = re.compile(r"participant (?P<key>\w+)(?: as (?P<label>.+))?")
MESSAGE = re.compile(r"(?P<sender>\w+)(?P<arrow>-->>|->>)(?P<receiver>\w+): (?P<text>.+)")
NOTE = re.compile(r"Note over (?P<first>\w+)(?:,(?P<last>\w+))?: (?P<text>.+)")
FRAME = re.compile(r"(?P<kind>loop|alt|opt|par)(?: (?P<text>.+))?")
SECTION = re.compile(r"(?:else|and)(?: (?P<text>.+))?")

_LETTER = 6.7  # pixels: the width of a letter
_BOX, _ROW, _MARGIN, _PADDING = 30, 36, 16, 12  # pixels
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}"
    ".m{text-anchor:middle}.k{font-weight:600}"
    ".p{fill:#e8f1f5;stroke:#2f6f8f}.l{stroke:#9db3bf;stroke-dasharray:3 4}"
    ".a{stroke:#222;fill:none}.d{stroke-dasharray:5 4}"
    ".f{fill:none;stroke:#9a9a9a}.n{fill:#fff7da;stroke:#c9b458}"
)


def draw(text: str) -> str:
    """The SVG of a diagram. A line that is not understood is a ValueError."""
    drawing = _Drawing([line.strip() for line in text.strip().splitlines()])
    return drawing.svg()


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, 30)


def _width(text: str) -> float:
    return max(map(len, _lines(text))) * _LETTER


class _Drawing:
    """Reads the lines twice: for the places of the participants, and to draw from top to bottom."""

    def __init__(self, lines: list[str]) -> None:
        if lines[:1] != ["sequenceDiagram"]:
            raise ValueError("only sequence diagrams can be drawn")
        self.lines = [line for line in lines[1:] if line]
        self.labels = {
            match["key"]: match["label"] or match["key"]
            for line in self.lines
            if (match := PARTICIPANT.fullmatch(line))
        }
        self.order = list(self.labels)
        self.x = self._positions()
        self.right = self.x[self.order[-1]] + self._space_after_the_last()
        self.y: float = _MARGIN + _BOX
        self.shapes: list[str] = []
        self.frames: list[tuple[float, int]] = []  # the top of each open frame, and its depth

    def _positions(self) -> dict[str, float]:
        """The x of each participant: neighbours are as far apart as the texts between them need."""
        labels = [self.labels[key] for key in self.order]
        gaps = [(_width(a) + _width(b)) / 2 + 2 * _PADDING + 12 for a, b in itertools.pairwise(labels)]
        for line in self.lines:
            if not (match := MESSAGE.fullmatch(line)):
                continue
            first, last = sorted(self.order.index(match[end]) for end in ("sender", "receiver"))
            needed = _width(match["text"]) + (40 if first == last else 24)
            last = max(last, first + 1)
            if last <= len(gaps):
                missing = needed - sum(gaps[first:last])
                for index in range(first, last):
                    gaps[index] += max(0.0, missing) / (last - first)
        positions = {self.order[0]: _MARGIN + _width(labels[0]) / 2 + 3 * _PADDING}
        for key, before, gap in zip(self.order[1:], self.order, gaps, strict=False):
            positions[key] = positions[before] + gap
        return positions

    def _space_after_the_last(self) -> float:
        last = self.order[-1]
        to_itself = [
            _width(match["text"]) + 40
            for line in self.lines
            if (match := MESSAGE.fullmatch(line)) and match["sender"] == match["receiver"] == last
        ]
        return max([_width(self.labels[last]) / 2 + 3 * _PADDING, *to_itself])

    def svg(self) -> str:
        for line in self.lines:
            self._draw(line)
        if self.frames:
            raise ValueError("a frame has no end")
        self.y += _PADDING
        height, width = self.y + _MARGIN, self.right + _MARGIN
        below: list[str] = []
        for key, x in self.x.items():
            half = _width(self.labels[key]) / 2 + _PADDING
            below.append(f'<line class="l" x1="{x:.0f}" y1="{_MARGIN + _BOX}" x2="{x:.0f}" y2="{self.y:.0f}"/>')
            below.append(
                f'<rect class="p" x="{x - half:.0f}" y="{_MARGIN}" width="{2 * half:.0f}" height="{_BOX}" rx="4"/>'
            )
            below.append(_text(x, _MARGIN + 19, self.labels[key], "m k"))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">'
            f"<style>{_STYLE}</style>"
            '<defs><marker id="h" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 8 4 0 8z"/></marker></defs>'
            f'<rect width="{width:.0f}" height="{height:.0f}" rx="6" fill="#fff"/>'
            f"{''.join(below)}{''.join(self.shapes)}</svg>\n"
        )

    def _draw(self, line: str) -> None:
        if PARTICIPANT.fullmatch(line):
            return
        if match := MESSAGE.fullmatch(line):
            self._message(match)
        elif match := NOTE.fullmatch(line):
            self._note(match)
        elif match := FRAME.fullmatch(line):
            self.y += 14
            self.frames.append((self.y, len(self.frames)))
            self._caption(f"{match['kind']} {match['text'] or ''}")
        elif self.frames and (match := SECTION.fullmatch(line)):
            self.y += 12
            left, width = self._sides()
            self.shapes.append(f'<path class="f d" d="M{left:.0f} {self.y:.0f}h{width:.0f}"/>')
            self._caption(f"else {match['text'] or ''}")
        elif self.frames and line == "end":
            self.y += 12
            left, width = self._sides()
            top, _ = self.frames.pop()
            self.shapes.append(
                f'<rect class="f" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{self.y - top:.0f}" rx="3"/>'
            )
        else:
            raise ValueError(f"this line of a diagram is not understood: {line}")

    def _sides(self) -> tuple[float, float]:
        """The left side and the width of the innermost frame."""
        inset = 6 * self.frames[-1][1]
        return _MARGIN / 2 + inset, self.right - 2 * inset

    def _caption(self, text: str) -> None:
        self.y += 16
        self.shapes.append(_text(self._sides()[0] + 8, self.y, text, "k"))

    def _message(self, match: re.Match[str]) -> None:
        start, end = self.x[match["sender"]], self.x[match["receiver"]]
        style = "a d" if match["arrow"] == "-->>" else "a"
        lines = _lines(match["text"])
        self.y += _ROW + 15 * (len(lines) - 1)
        for number, text in enumerate(reversed(lines)):
            if start == end:
                self.shapes.append(_text(start + 28, self.y - 2 - 15 * number, text, ""))
            else:
                self.shapes.append(_text((start + end) / 2, self.y - 7 - 15 * number, text, "m"))
        if start == end:
            path = f"M{start:.0f} {self.y - 12:.0f}h22v12H{start + 2:.0f}"
        else:
            path = f"M{start:.0f} {self.y:.0f}H{end - 2 if end > start else end + 2:.0f}"
        self.shapes.append(f'<path class="{style}" marker-end="url(#h)" d="{path}"/>')

    def _note(self, match: re.Match[str]) -> None:
        left, right = sorted(self.x[match[end] or match["first"]] for end in ("first", "last"))
        wide = max(right - left + 80, 260)
        left = min(max((left + right - wide) / 2, _MARGIN), self.right - wide)
        lines = textwrap.wrap(match["text"], int((wide - 2 * _PADDING) / _LETTER))
        self.y += 16
        height = 16 * len(lines) + _PADDING
        self.shapes.append(
            f'<rect class="n" x="{left:.0f}" y="{self.y:.0f}" width="{wide:.0f}" height="{height}" rx="3"/>'
        )
        for number, text in enumerate(lines):
            self.shapes.append(_text(left + wide / 2, self.y + 18 + 16 * number, text, "m"))
        self.y += height


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.0f}" y="{y:.0f}">{escape(text.strip())}</text>'
