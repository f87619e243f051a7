"""Names for the keys of tickets, which are reused."""

from __future__ import annotations


class Slots:
    """The names of a client's keys. A name is reused as soon as no request about it can be on its way.

    Until a compaction, etcd keeps every key that ever existed, and a range request scans all of them. A new name for
    each ticket would make a lock slower with every use.
    """

    def __init__(self, nonce: str) -> None:
        self._client = nonce[-24:]
        self._count = 0
        self._free: list[str] = []

    def take(self) -> str:
        try:
            return self._free.pop()  # atomic, so threads need no mutex
        except IndexError:
            self._count += 1
            return f"{self._client}{self._count:08x}"

    def give_back(self, slot: str) -> None:
        """The key is deleted, and all requests about it were answered: reuse its name."""
        self._free.append(slot)
