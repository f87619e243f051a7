"""Blocking functions that take no deadline, called on a daemon thread of their own.

A caller waits for the result until its own deadline. The thread of a call that hangs stays behind and ends by itself.
asyncio's default executor is not used: the program's own blocking work may occupy all of its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.runtimes import system

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """One call. `when_done` and `result` may be used by several callers."""

    def __init__(self, function: Callable[[], T], name: str, discard: Callable[[T], object] | None = None) -> None:
        """`discard` is called with a result that no caller waits for any more."""
        self.is_done = False
        self._function, self._name, self._discard = function, name, discard
        self._is_wanted = True
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []

    def start(self) -> None:
        """Raises OSError if no thread can be started."""
        try:
            threading.Thread(target=self._run, name=f"holdfast-{self._name}", daemon=True).start()
        except RuntimeError as error:
            if system.process_ends:  # from Python 3.12 on there are no new threads then
                self._run()
                return
            raise OSError(f"no thread can be started ({self._name}): {error}") from error

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call it when the result is there, on any thread; it may be called twice."""
        self._callbacks.append(callback)
        if self.is_done:
            callback()

    def result(self) -> T:
        """The value that the function returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it is done

    def abandon(self) -> None:
        """No caller waits for the result any more."""
        self._is_wanted = False
        if self.is_done:
            self._drop()

    def fail(self, error: BaseException) -> None:
        """It could not be started."""
        self._error = error
        self._finish()

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        for callback in list(self._callbacks):
            callback()
        if not self._is_wanted:
            self._drop()

    def _drop(self) -> None:
        value, self._value = self._value, None
        if value is not None and self._discard is not None:
            self._discard(value)
