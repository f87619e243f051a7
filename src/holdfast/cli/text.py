"""Escape untrusted text (names of locks, hosts, programs, meta) for a terminal, and fit it into columns.

Any client can choose a lock name. Printed unescaped, it could move the cursor, clear the screen or reverse the reading
direction. So every character that is not `str.isprintable` is escaped.
"""

from __future__ import annotations

import unicodedata

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BMP_MAX = 0xFFFF


def escape(text: str) -> str:
    r"""Replace unprintable characters by \n, \u001b and so on. Applying it twice changes nothing.

    >>> print(escape("red \x1b[31m"))
    red \u001b[31m
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def display_name(name: str) -> str:
    r"""Return a printable form of a name. An unprintable name is quoted for bash and zsh, so that it can be pasted.

    >>> print(display_name("order:42"), display_name("two\nlines"))
    order:42 $'two\nlines'
    """
    if name.isprintable() and name.strip() == name and not name.startswith("$'"):
        return name
    return "$'" + escape(name.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def width(text: str) -> int:
    """Return the number of terminal columns that the text occupies.

    >>> width("lock"), width("錠前")
    (4, 4)
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def shorten(text: str, columns: int, *, ellipsis: str = "…") -> str:
    """Shorten to at most `columns`. The middle is cut, because names often share a prefix and differ at the end.

    >>> shorten("invoices:2031-04-17:eu", 14)
    'invoice…-17:eu'
    """
    if width(text) <= columns:
        return text
    if columns <= width(ellipsis):
        return _first(text, columns)
    room = columns - width(ellipsis)
    end = _first(text[::-1], room // 2)[::-1]
    return _first(text, room - width(end)) + ellipsis + end


def wrap(text: str, columns: int) -> list[str]:
    """Split into lines of at most `columns`, at any character.

    >>> wrap("invoices:2031", 8)
    ['invoices', ':2031']
    """
    lines = []
    while text:
        line = _first(text, columns) or text[0]
        lines.append(line)
        text = text[len(line) :]
    return lines


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    number = ord(character)
    return _SHORT.get(character) or (f"\\u{number:04x}" if number <= _BMP_MAX else f"\\U{number:08x}")


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):  # combining characters
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _first(text: str, columns: int) -> str:
    """Return the longest prefix that fits."""
    taken = 0
    for index, character in enumerate(text):
        taken += _columns(character)
        if taken > columns:
            return text[:index]
    return text
