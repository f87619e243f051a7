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
        self._taken: dict[str, str] = {}  # by nonce

    def of(self, nonce: str) -> str:
        slot = self._taken.get(nonce)
        if slot is None:
            try:
                slot = self._free.pop()  # atomic, so threads need no mutex
            except IndexError:
                self._count += 1
                slot = f"{self._client}{self._count:08x}"
            self._taken[nonce] = slot
        return slot

    def give_back(self, nonce: str) -> None:
        """The key is deleted, and all requests about it were answered: reuse its name."""
        slot = self._taken.pop(nonce, None)
        if slot is not None:
            self._free.append(slot)

    def retire(self, nonce: str) -> None:
        """A request about the key may still arrive: never reuse its name."""
        self._taken.pop(nonce, None)
