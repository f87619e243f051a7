"""Draws which packages of holdfast and holdfast_lab import which, from the source: docs/internals/import-graph.svg.

Imports for type checkers and imports inside functions count too. A package is a folder or a module of src/holdfast or
of the laboratory; the backends count one by one. Fails if packages import each other in a cycle.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {"holdfast": ROOT / "src" / "holdfast", "holdfast_lab": ROOT / "packages" / "lab" / "src" / "holdfast_lab"}
PICTURE = ROOT / "docs" / "internals" / "import-graph.svg"

Graph = Mapping[str, set[str]]

_BOX, _GAP, _ROW, _MARGIN = 24, 14, 74, 20  # pixels
_FONT = 'font-family="monospace"'
_LETTER = 7.2  # pixels: the width of a letter


def package_of(module: str) -> str:
    """The package that a dotted module name belongs to."""
    root, *parts = module.split(".")
    if not parts:
        return root
    if root == "holdfast_lab":
        return f"lab/{parts[0]}"
    if parts[0] == "backends" and len(parts) > 1 and (SOURCES[root] / "backends" / parts[1]).is_dir():
        return f"backends/{parts[1]}"
    return parts[0]


def import_statements(path: Path, *, typing: bool = True) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a file, anywhere in it; without `typing`, those that are executed."""

    def within(statements: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
        for node in statements:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node
            for field in ("body", "orelse", "handlers", "finalbody", "cases"):
                if typing or field != "body" or not _is_for_typing(node):
                    yield from within(getattr(node, field, ()))

    return within(ast.parse(path.read_text(encoding="utf-8")).body)


def _is_for_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(path: Path, source: Path) -> Iterator[str]:
    """Every module of holdfast and holdfast_lab that a file imports, anywhere in it."""
    package = path.relative_to(source.parent).parts[:-1]
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in SOURCES)
        else:
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            root = module.split(".")[0]
            if root in SOURCES:
                for alias in node.names:
                    path_of_name = SOURCES[root].parent.joinpath(*module.split("."), alias.name)
                    is_module = path_of_name.is_dir() or path_of_name.with_suffix(".py").exists()
                    yield f"{module}.{alias.name}" if is_module else module


def graph() -> dict[str, set[str]]:
    """For each package, the packages that it imports."""
    edges: dict[str, set[str]] = {}
    for source in SOURCES.values():
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source.parent).with_suffix("").parts
            package = package_of(".".join(part for part in parts if part != "__init__"))
            edges.setdefault(package, set()).update(package_of(name) for name in imports_of(path, source))
            edges[package].discard(package)
    return edges


def levels(edges: Graph) -> list[list[str]]:
    """The packages from the bottom to the top: each imports only from rows before its own.

    Raises:
        graphlib.CycleError: packages import each other.
    """
    level: dict[str, int] = {}
    for package in graphlib.TopologicalSorter(edges).static_order():
        level[package] = max((level[other] + 1 for other in edges.get(package, ())), default=0)
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for package in sorted(level):
        rows[level[package]].append(package)
    return rows


def reduced(edges: Graph) -> dict[str, set[str]]:
    """The same without imports that follow from others: a imports c, if a imports b and b imports c."""
    reachable: dict[str, set[str]] = {}
    for package in graphlib.TopologicalSorter(edges).static_order():
        direct = edges.get(package, set())
        reachable[package] = direct.union(*(reachable[other] for other in direct))
    return {
        package: {other for other in direct if not any(other in reachable[third] for third in direct)}
        for package, direct in edges.items()
    }


def draw(edges: Graph) -> str:
    """The picture: each row imports from rows below it. Imports that follow from others are left out."""
    shown = reduced(edges)
    rows = levels(edges)[::-1]
    widths = [[len(package) * _LETTER + 20 for package in row] for row in rows]
    width = max(sum(row) + _GAP * (len(row) - 1) for row in widths) + 2 * _MARGIN
    height = len(rows) * _ROW - (_ROW - _BOX) + 2 * _MARGIN
    boxes: dict[str, tuple[float, float, float]] = {}
    for number, (row, sizes) in enumerate(zip(rows, widths, strict=True)):
        left = (width - sum(sizes) - _GAP * (len(row) - 1)) / 2
        for package, size in zip(row, sizes, strict=True):
            boxes[package] = (left, _MARGIN + number * _ROW, size)
            left += size + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-size="12" {_FONT}>',
        "<title>Imports between the packages of holdfast: each row imports only from rows below it</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
    ]
    for package, (left, top, size) in boxes.items():
        for other in sorted(shown.get(package, ())):
            to_left, to_top, to_size = boxes[other]
            start = f"{left + size / 2:.0f},{top + _BOX:.0f}"
            end = f"{to_left + to_size / 2:.0f},{to_top:.0f}"
            lines.append(f'<path d="M{start} L{end}" stroke="#8a97a6" stroke-width="1.2" fill="none"/>')
    for package, (left, top, size) in boxes.items():
        lines.append(
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{size:.0f}" height="{_BOX}" rx="4" fill="#eef3f8" '
            f'stroke="#34506b"/><text x="{left + size / 2:.0f}" y="{top + 16:.0f}" text-anchor="middle">'
            f"{escape(package)}</text>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    try:
        picture = draw(graph())
    except graphlib.CycleError as error:
        sys.stderr.write(f"packages import each other: {' -> '.join(error.args[1])}\n")
        return 1
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)} is written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
