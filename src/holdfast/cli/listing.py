"""List the locks in use. A store without an index of its locks is searched slowly, to limit the load of the server."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli.terminal import Terminal
from holdfast.runtimes.threads import run_sync
from holdfast.url import SCHEMES

if TYPE_CHECKING:
    from holdfast.cli.interrupts import Interrupts
    from holdfast.core.tickets import LockInfo
    from holdfast.threads.client import Client

_PROGRESS_AFTER = 1.0  # seconds; most searches end earlier
_PROGRESS_EVERY = 0.2


class SearchInterrupted(Exception):
    """A signal was received during a search."""


def has_index(client: Client) -> bool:
    """Whether the store can list its locks without a search of all keys."""
    return not SCHEMES[client._address.scheme].searched  # noqa: SLF001 - not part of the public API


class LocksInUse:
    """The locks in use whose names begin with `prefix`. With `interrupts`, the search can be repeated.

    A signal in `interrupts` ends a search with SearchInterrupted.
    """

    def __init__(self, client: Client, prefix: str, interrupts: Interrupts | None = None) -> None:
        self._client = client
        self._prefix = prefix
        self._interrupts = interrupts
        self._listing = client._engine.operators.listing(prefix)  # noqa: SLF001 - the progress of a search is not public
        if self._listing is not None:
            self._listing.on_step = self._step
            self._listing.follows = interrupts is not None
        self._shown_at = math.inf  # time of the last progress line; inf outside of `find`

    def find(self) -> list[LockInfo]:
        """Return all locks. Show the progress of a long search on stderr if it is a terminal."""
        if self._listing is None:
            return self._client.locks(self._prefix)
        can_move_cursor = Terminal.of(sys.stderr).can_move_cursor
        self._shown_at = time.monotonic() + _PROGRESS_AFTER if can_move_cursor else math.inf
        try:
            run_sync(self._listing.search(math.inf))
            return run_sync(self._listing.read())
        finally:
            self._shown_at = math.inf
            if can_move_cursor:
                print(end="\r\x1b[K", file=sys.stderr, flush=True)

    def read(self) -> list[LockInfo]:
        """Read the locks that the search has found so far."""
        return self._client.locks(self._prefix) if self._listing is None else run_sync(self._listing.read())

    def wait(self, interrupts: Interrupts, seconds: float) -> None:
        """Wait until the time is up or a signal arrives. Search during this time, over all keys at most once."""
        until = time.monotonic() + seconds
        try:
            if self._listing is not None:
                run_sync(self._listing.search(seconds))
        finally:
            interrupts.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """End the search and its subscriptions. The client stays open."""
        if self._listing is not None:
            self._listing.close()

    def _step(self) -> None:
        if self._interrupts is not None and self._interrupts.received:
            raise SearchInterrupted
        listing, now = self._listing, time.monotonic()
        if listing is None or now < self._shown_at + _PROGRESS_EVERY:
            return
        self._shown_at = now
        progress = (
            f"reading locks: {listing.locks_read:,} of {listing.locks_total:,}"
            if listing.locks_total
            else f"searching keys: about {listing.keys_searched:,} of {listing.keys_total:,}"
        )
        terminal = Terminal.of(sys.stderr)
        line = terminal.fit(f"{progress}, throttled to protect the server", terminal.columns - 1)
        print(end=f"\r{line}\x1b[K", file=sys.stderr, flush=True)
