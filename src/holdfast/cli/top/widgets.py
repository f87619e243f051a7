"""Widgets that draw lines of text. They take no markup, so that no name of a lock can contain any.

A line is a list of segments: text that is escaped already, and a style. Only visible lines are drawn, so the time of a
redraw does not depend on the number of locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from holdfast.cli.terminal import Terminal

Line = Sequence[tuple[str, str]]  # text and style: "", "bold red", …

_CURSOR = Style(bgcolor="grey37", bold=True)


def plain(text: str, style: str = "") -> Line:
    """Return a line in one style."""
    return [(text, style)]


def terminal_of(columns: int) -> Terminal:
    """Return the capabilities of a Textual screen, for functions that fit text into columns."""
    return Terminal(can_move_cursor=True, has_color=True, has_unicode=True, columns=columns)


def _strip(line: Line, columns: int, style: Style) -> Strip:
    segments = [Segment(text, style + Style.parse(name)) for text, name in line]
    return Strip(segments).adjust_cell_length(columns, style)


class FixedLines(Widget):
    """Lines that do not scroll: a title, a heading, a status."""

    _lines: Sequence[Line] = ()

    def __init__(self, *, id: str, height: int = 1) -> None:  # noqa: A002 - the name that Textual uses
        super().__init__(id=id)
        self.styles.height = height

    def show(self, *lines: Line) -> None:
        self._lines = lines
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return _strip(self._lines[y] if y < len(self._lines) else (), self.size.width, self.rich_style)


class ScrollingLines(ScrollView, can_focus=True):
    """Lines that scroll by keys and mouse."""

    DEFAULT_CSS = "ScrollingLines { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    _lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self.virtual_size = Size(self.scrollable_content_region.width, len(lines))
        self.refresh()

    def on_resize(self) -> None:
        self.show(self._lines)

    def render_line(self, y: int) -> Strip:
        number = self.scroll_offset.y + y
        line = self._lines[number] if number < len(self._lines) else ()
        return _strip(line, self.size.width, self._style_of(number))

    def _style_of(self, number: int) -> Style:
        return self.rich_style


class SelectableLines(ScrollingLines):
    """Lines with keys, one of which is selected.

    The first line is selected until the user selects another one. Then the selection stays on its key when lines move.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", show=False),
        Binding("down,j", "select(1)", show=False),
        Binding("pageup", "select_page(-1)", show=False),
        Binding("pagedown", "select_page(1)", show=False),
        Binding("home", "select_end(0)", show=False),
        Binding("end", "select_end(1)", show=False),
        Binding("enter", "open", "Lock"),
    ]

    class Selected(Message):
        """Another line is selected."""

    class Opened(Message):
        """Enter or a second click on the selected line."""

    _keys: Sequence[str] = ()
    _index = 0
    _follows_key = False

    @property
    def selected(self) -> str | None:
        """The key of the selected line."""
        return self._keys[self._index] if self._keys else None

    def show_keyed(self, keys: Sequence[str], lines: Sequence[Line]) -> None:
        """Show these lines. If the selected one is gone, the line at its place is selected."""
        selected = self.selected
        self._keys = keys
        if self._follows_key and selected in keys:
            self._index = keys.index(selected)
        self._index = max(0, min(self._index, len(keys) - 1))
        self.show(lines)
        self._scroll_to_selected()

    def action_select(self, by: int) -> None:
        self._select(self._index + by)

    def action_select_page(self, by: int) -> None:
        self._select(self._index + by * max(1, self.size.height - 1))

    def action_select_end(self, end: int) -> None:
        self._select(end * len(self._keys))

    def action_open(self) -> None:
        if self._keys:
            self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        index = self.scroll_offset.y + event.y
        if index < len(self._keys):
            is_second = event.chain > 1 and index == self._index
            self._select(index)
            if is_second:
                self.action_open()

    def _select(self, index: int) -> None:
        self._index = max(0, min(index, len(self._keys) - 1))
        self._follows_key = self._index > 0
        self._scroll_to_selected()
        self.refresh()
        self.post_message(self.Selected())

    def _scroll_to_selected(self) -> None:
        self.scroll_to_region(Region(0, self._index, 1, 1), animate=False)

    def _style_of(self, number: int) -> Style:
        return self.rich_style + _CURSOR if self._keys and number == self._index else self.rich_style
