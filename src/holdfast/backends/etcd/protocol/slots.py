"""Names for the keys of tickets, used again and again."""

from __future__ import annotations


class Slots:
    """What a client's keys are called. One is used again as soon as nothing about it can be under way any more.

    etcd remembers every key that ever was, until it is compacted, and looks at all of them whenever it looks for those
    that are there. A new one for each ticket would make a lock slower with every use.
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
                slot = self._free.pop()  # one step, whatever other threads do
            except IndexError:
                self._count += 1
                slot = f"{self._client}{self._count:08x}"
            self._taken[nonce] = slot
        return slot

    def give_back(self, nonce: str) -> None:
        """Its key is gone, and all that was asked about it was answered."""
        slot = self._taken.pop(nonce, None)
        if slot is not None:
            self._free.append(slot)

    def retire(self, nonce: str) -> None:
        """Something about it may still come: never again."""
        self._taken.pop(nonce, None)
