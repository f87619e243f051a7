"""The locks in use, for the commands that show them. On a store without an index they are found by a slow search."""

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
    from holdfast.client import Client
    from holdfast.core.tickets import LockInfo

_PROGRESS_AFTER = 1.0  # seconds: most searches are over by then
_PROGRESS_EVERY = 0.2


class Stopped(Exception):
    """A signal was received during a search."""


def has_index(client: Client) -> bool:
    """The store can list its locks without a search of all its keys."""
    return not SCHEMES[client._address.scheme].searched  # noqa: SLF001 - users of the API need not know


class LocksInUse:
    """Those whose names begin with `prefix`; once, or with `interrupts` again and again.

    A signal that `interrupts` has noted ends a search with Stopped.
    """

    def __init__(self, client: Client, prefix: str, interrupts: Interrupts | None = None) -> None:
        self._client = client
        self._prefix = prefix
        self._interrupts = interrupts
        self._listing = client._engine.listing(prefix)  # noqa: SLF001 - the progress of a search has no public name
        if self._listing is not None:
            self._listing.on_step = self._step
            self._listing.follows = interrupts is not None
        self._shown_at = math.inf  # when progress was shown last; never outside of `find`

    def find(self) -> list[LockInfo]:
        """All of them. If the search takes long, its progress is shown on stderr, if that is a terminal."""
        if self._listing is None:
            return self._client.locks(self._prefix)
        can_move = Terminal.of(sys.stderr).can_move
        self._shown_at = time.monotonic() + _PROGRESS_AFTER if can_move else math.inf
        try:
            run_sync(self._listing.search(math.inf))
            return run_sync(self._listing.read())
        finally:
            self._shown_at = math.inf
            if can_move:
                print(end="\r\x1b[K", file=sys.stderr, flush=True)

    def read(self) -> list[LockInfo]:
        """Those that were found by now, as they are now."""
        return self._client.locks(self._prefix) if self._listing is None else run_sync(self._listing.read())

    def wait(self, interrupts: Interrupts, seconds: float) -> None:
        """Wait for that long or until a signal; search for locks meanwhile, over all keys once at most."""
        until = time.monotonic() + seconds
        try:
            if self._listing is not None:
                run_sync(self._listing.search(seconds))
        finally:
            interrupts.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Let go of the store; the client stays open."""
        if self._listing is not None:
            self._listing.close()

    def _step(self) -> None:
        if self._interrupts is not None and self._interrupts.received:
            raise Stopped
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
        line = terminal.fit(f"{progress}, slowly, to spare the server", terminal.columns - 1)
        print(end=f"\r{line}\x1b[K", file=sys.stderr, flush=True)
