"""The table of marks, to be read beside statements.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.backends.mysql.port import Answer


@dataclass(slots=True)
class Mark:
    """A row of holdfast_marks."""

    id: bytes
    name: str
    number: int
    nonce: str
    expires: int


class Marks:
    """Each statement on them."""

    clock: Callable[[], int]
    marks: dict[bytes, Mark]

    def mark_answer(self, key: bytes, name: str, number: int, nonce: str, keep: int) -> Answer:
        end = self.clock() + keep
        mark = self.marks.get(key)
        if mark is None:
            self.marks[key] = Mark(key, name, number, nonce, end)
            return Answer(1, 1)
        before = (mark.number, mark.nonce, mark.expires)
        if self.is_lower(mark, number):
            mark.nonce = nonce
        is_ours = mark.nonce == nonce and mark.number <= number
        if is_ours:
            mark.expires = max(mark.expires, end)
        mark.number = max(mark.number, number)
        return Answer(0 if before == (mark.number, mark.nonce, mark.expires) else 2, int(is_ours))

    def is_lower(self, mark: Mark, number: int) -> bool:
        return mark.number < number

    def marks_answer(self, keys: tuple[bytes, ...]) -> Answer:
        found = [mark for mark in self.marks.values() if mark.id in keys]
        return Answer(rows=[(mark.id.hex().upper(), str(mark.number)) for mark in found])

    def reap_marks_answer(self, rows: int) -> Answer:
        now = self.clock()
        old = [mark for mark in self.marks.values() if mark.expires <= now]
        for mark in sorted(old, key=_end)[:rows]:
            del self.marks[mark.id]
        return Answer(len(old[:rows]))


def _end(mark: Mark) -> tuple[int, bytes]:
    return mark.expires, mark.id
