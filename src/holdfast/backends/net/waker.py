"""Wakes a thread or task that waits in poll(): a socket pair whose reading end is one of the polled descriptors."""

from __future__ import annotations

import contextlib
import os
import socket

_READ_SIZE = 4096


class Waker:
    """`wake` may be called from any thread."""

    def __init__(self) -> None:
        self._ends = self._reader, self._writer = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)  # noqa: FBT003 (its name says it)

    def fileno(self) -> int:
        """The descriptor to poll. It is readable after a `wake`."""
        return self._reader.fileno()

    @property
    def writing_end(self) -> int:
        """The descriptor for `signal.set_wakeup_fd`: a byte that is written to it has the effect of `wake`."""
        return self._writer.fileno()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full, so the descriptor is readable already
            self._writer.send(b"!")

    def drain(self) -> None:
        """Make the descriptor unreadable again, however many calls of `wake` there were."""
        with contextlib.suppress(OSError):  # nothing to read, or closed
            while True:
                if len(self._reader.recv(_READ_SIZE)) < _READ_SIZE:
                    break

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):  # other code has closed the descriptor already
                end.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptors only."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                os.close(end.detach())
