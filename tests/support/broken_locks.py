"""Locks that are wrong on purpose, as adapters of `holdfast verify`: it has to find each of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast_lab.verify import Adapter
from holdfast_lab.verify.ours import Threads


class Nothing(Adapter):
    """Grants every request at once."""

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        return object()

    def release(self, held: Any) -> bool:
        return True

    def is_held(self, held: Any) -> bool:
        return True


class Documented(Nothing):
    """The same, and its documentation says so."""

    documented: ClassVar[Mapping[str, str]] = {
        "exclusion": "it excludes no other process",
        "writes": "it has no fences",
    }


class Stuck(Nothing):
    """Does not return from any call after the first twenty, which are enough for the parent of the workers."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._calls = 0

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        self._calls += 1
        if self._calls > 20:
            threading.Event().wait()
        return super().acquire(name, ttl, timeout)


class Unusable(Nothing):
    """Cannot be created."""

    def __init__(self, url: str) -> None:
        raise OSError("no route to host")


class WithoutDeadline(Threads):
    """holdfast with one bug: the holder trusts a lease whose ttl has passed, until it releases it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._held: set[int] = set()

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        held = super().acquire(name, ttl, timeout)
        if held is not None:
            self._held.add(id(held))
        return held

    def release(self, held: Any) -> bool:
        self._held.discard(id(held))
        return super().release(held)

    def is_held(self, held: Any) -> bool:
        return id(held) in self._held
