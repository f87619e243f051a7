"""List the locks in use. A store without an index of its locks is searched slowly, to limit the load of the server."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.cli.terminal import Terminal
from holdfast.monitor.monitors import LockReader
from holdfast.runtimes.threads import run_sync
from holdfast.url import scheme_of

if TYPE_CHECKING:
    from holdfast.cli.interrupts import Interrupts
    from holdfast.core.ports import Listing
    from holdfast.core.tickets import LockInfo
    from holdfast.threads.client import Client

_PROGRESS_AFTER = 1.0  # seconds; most searches end earlier
_PROGRESS_EVERY = 0.2


class SearchInterrupted(Exception):
    """A signal was received during a search."""


def has_index(client: Client) -> bool:
    """Whether the store can list its locks without a search of all keys."""
    if not scheme_of(client._address.scheme).searched:  # noqa: SLF001 - not part of the public API
        return True
    return getattr(client._engine.backend, "has_index", False)  # noqa: SLF001


def find_locks(client: Client, prefix: str) -> list[LockInfo]:
    """Return the locks in use whose names begin with `prefix`. Show the progress of a long search."""
    with SearchProgress() as progress:
        reader = LockReader(client, prefix, follows=False, on_step=progress.step)
        run_sync(reader.search(math.inf))
        return run_sync(reader.read())


class SearchProgress:
    """Within its `with` block it shows the progress of a long search on stderr, if that is a terminal.

    A signal in `interrupts` ends a search with SearchInterrupted, also outside of the block.
    """

    def __init__(self, interrupts: Interrupts | None = None) -> None:
        self._interrupts = interrupts
        self._next_at = math.inf  # when the next progress line is due; inf outside of the block
        self._has_line = False

    def step(self, listing: Listing) -> None:
        """To be called after each request of a search."""
        if self._interrupts is not None and self._interrupts.received:
            raise SearchInterrupted
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _PROGRESS_EVERY
        progress = (
            f"reading locks: {listing.locks_read:,} of {listing.locks_total:,}"
            if listing.locks_total
            else f"searching keys: about {listing.keys_searched:,} of {listing.keys_total:,}"
        )
        terminal = Terminal.of(sys.stderr)
        line = terminal.fit(f"{progress}, throttled to protect the server", terminal.columns - 1)
        self._has_line = True  # before the output, because an interrupt after it must still remove the line
        print(end=f"\r{line}\x1b[K", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._next_at = time.monotonic() + _PROGRESS_AFTER if Terminal.of(sys.stderr).can_move_cursor else math.inf
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next_at = math.inf
        if self._has_line:
            print(end="\r\x1b[K", file=sys.stderr, flush=True)
