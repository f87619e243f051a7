"""Text that others wrote (names of locks, hosts, programs, meta), made safe for a terminal and fitted into columns.

Whoever takes a lock chooses its name. Shown as it is, it could move the operator's cursor, clear the screen or turn the
reading direction round: everything that `str.isprintable` refuses is escaped.
"""

from __future__ import annotations

import unicodedata

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BMP_MAX = 0xFFFF


def escape(text: str) -> str:
    r"""What cannot be printed, as \n, \u001b and so on. The rest stays, so this may be done twice.

    >>> print(escape("red \x1b[31m"))
    red \u001b[31m
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def shown(name: str) -> str:
    r"""A name as a person reads it. One that cannot be printed is quoted as bash and zsh read it: ready to be pasted.

    >>> print(shown("order:42"), shown("two\nlines"))
    order:42 $'two\nlines'
    """
    if name.isprintable() and name.strip() == name and not name.startswith("$'"):
        return name
    return "$'" + escape(name.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def width(text: str) -> int:
    """How many columns of a terminal it takes.

    >>> width("lock"), width("錠前")
    (4, 4)
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def shorten(text: str, columns: int, *, ellipsis: str = "…") -> str:
    """At most `columns` wide. The middle goes: names often begin alike, and differ at the end.

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


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    number = ord(character)
    return _SHORT.get(character) or (f"\\u{number:04x}" if number <= _BMP_MAX else f"\\U{number:08x}")


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):  # drawn over the one before
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _first(text: str, columns: int) -> str:
    """As much of its beginning as fits."""
    taken = 0
    for index, character in enumerate(text):
        taken += _columns(character)
        if taken > columns:
            return text[:index]
    return text
