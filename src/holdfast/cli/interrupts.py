"""Signals that end a command, noted instead of raised, so that clean-up is never cut in half."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered: the first of SIGINT, SIGTERM and SIGHUP is kept in `received`, for loops to look at.

    What is ignored stays ignored (`nohup`, a job in the background of a script). For the main thread only.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._bell: tuple[int, int] | None = None  # a pipe that the handler writes to

    @property
    def status(self) -> int:
        """The exit status that a shell expects of a program that such a signal ended; 0 without one."""
        return 0 if self.received is None else 128 + self.received

    def wait(self, seconds: float) -> None:
        """Sleep for that long; a signal ends it at once, which would not end `time.sleep`."""
        if self.received is None and self._bell is not None:
            select.select([self._bell[0]], [], [], seconds)

    def __enter__(self) -> Self:
        self._bell = os.pipe()
        os.set_blocking(self._bell[1], False)
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._bell is not None:
            for end in self._bell:
                os.close(end)
            self._bell = None

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):  # it has rung often enough
                os.write(self._bell[1], b"!")
