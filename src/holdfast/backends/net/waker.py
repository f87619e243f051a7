"""A bell for those who wait for descriptors: it is one of them."""

from __future__ import annotations

import contextlib
import os
import socket


class Waker:
    """Rung by anybody, heard by one who waits."""

    def __init__(self) -> None:
        self._ends = self._heard, self._rung = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)  # noqa: FBT003 (its name says it)

    def fileno(self) -> int:
        """Ready to be read when it was rung."""
        return self._heard.fileno()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it rings already
            self._rung.send(b"!")

    def drain(self) -> None:
        """It was heard, however often it was rung."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._heard.recv(4096)

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def abandon(self) -> None:
        """In a forked child: the descriptors only."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                os.close(end.detach())
