"""Signals that end a command, noted instead of raised, so that clean-up is never cut in half."""

from __future__ import annotations

import select
import signal
from types import FrameType, TracebackType
from typing import Any, Self

from holdfast.backends.net.waker import Waker

# Windows has no SIGHUP.
_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """While entered: the first of SIGINT, SIGTERM and SIGHUP is kept in `received`, for loops to look at.

    What is ignored stays ignored (`nohup`, a job in the background of a script). For the main thread only.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._bell: Waker | None = None  # rung by the handler

    @property
    def status(self) -> int:
        """The exit status that a shell expects of a program that such a signal ended; 0 without one."""
        return 0 if self.received is None else 128 + self.received

    def wait(self, seconds: float) -> None:
        """Sleep for that long; a signal ends it at once, which would not end `time.sleep`."""
        if self.received is None and self._bell is not None:
            select.select([self._bell.fileno()], [], [], seconds)

    def __enter__(self) -> Self:
        self._bell = Waker()
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
            self._bell.close()
            self._bell = None

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if self._bell is not None:
            self._bell.wake()
