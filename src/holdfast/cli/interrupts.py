"""Record the signals that end a command instead of raising an exception, so that clean-up always completes."""

from __future__ import annotations

import select
import signal
from types import FrameType, TracebackType
from typing import Any, Self

from holdfast.backends.net.waker import Waker

# Windows has no SIGHUP.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """A context manager that stores the first SIGINT, SIGTERM or SIGHUP in `received`, for loops to check.

    An ignored signal stays ignored (`nohup`, a background job of a script). Use it in the main thread only.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._waker = Waker()
        self._previous_fd = -1

    @property
    def status(self) -> int:
        """128 + the number of the signal, as shells report it; 0 if no signal was received."""
        return 0 if self.received is None else 128 + self.received

    def wait(self, seconds: float) -> None:
        """Sleep; a signal ends the sleep at once, which it does not do with `time.sleep`."""
        if self.received is None:
            select.select([self._waker.fileno()], [], [], seconds)
            self._waker.drain()  # another signal may have written to it

    def __enter__(self) -> Self:
        # Python calls a handler between two instructions. A signal just before `select` would not end it, so a byte is
        # written by the C code that receives the signal.
        self._previous_fd = signal.set_wakeup_fd(self._waker.writing_end, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._waker.close()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
