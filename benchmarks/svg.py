"""An SVG drawing with the shapes that plots need, in colours for light and dark pages."""

from __future__ import annotations

from html import escape

# The drawing has its own background, so that it is readable on any page.
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #4d5560; }
.ground { fill: #ffffff; } .title { font-size: 15px; font-weight: 600; fill: #1c2128; } .small { font-size: 11px; }
.grid { stroke: #e1e5ea; } .base { stroke: #9aa3ad; stroke-dasharray: 3 3; }
.ours { fill: #0b6bcb; stroke: #0b6bcb; } .peer { fill: #7d8793; stroke: #7d8793; }
.bad { fill: #cf222e; stroke: #cf222e; }
text.ours { stroke: none; font-weight: 600; } text.peer { stroke: none; fill: #4d5560; } text.bad { stroke: none; }
.ring { fill: #ffffff; stroke-width: 2; } polyline.line { fill: none; stroke-width: 2; }
.range { stroke-width: 2; opacity: .45; }
@media (prefers-color-scheme: dark) {
  text { fill: #a9b4c0; } .ground { fill: #10151c; } .title { fill: #eef2f6; }
  .grid { stroke: #2b333d; } .base { stroke: #6b7683; }
  .ours { fill: #58a6ff; stroke: #58a6ff; } .peer { fill: #8b96a3; stroke: #8b96a3; }
  .bad { fill: #ff7b72; stroke: #ff7b72; } text.peer { fill: #a9b4c0; } .ring { fill: #10151c; }
}
"""


class Drawing:
    """Shapes in the order in which they were added. Sizes are pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> None:
        """`anchor` is the point of the text that is at x: start, middle, end."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self._parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def dot(self, x: float, y: float, kind: str, radius: float = 4.5) -> None:
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{kind}"/>')

    def path(self, points: list[tuple[float, float]], kind: str) -> None:
        """Through all the points."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{joined}" class="{kind} line"/>')

    def to_svg(self) -> str:
        """Return the SVG file."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(self._title)}">'
        )
        ground = f'<rect class="ground" width="{width}" height="{height}" rx="8"/>'
        return "\n".join([head, f"<style>{_STYLE}</style>", ground, *self._parts, "</svg>"]) + "\n"
