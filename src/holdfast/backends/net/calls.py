"""Calls of blocking functions that have no timeout, each on its own daemon thread.

A caller waits for the result until its own deadline. The thread of a call that hangs ends when the function returns.
asyncio's default executor is not used, because the blocking work of the program may occupy all of its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.runtimes import system

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """One call. Several callers can use `add_done_callback` and `result`."""

    def __init__(self, function: Callable[[], T], name: str, discard: Callable[[T], object] | None = None) -> None:
        """`discard` is called with the result if no caller waits for it any more."""
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
            if system.process_ends:  # Python 3.12 and later start no threads then
                self._run()
                return
            raise OSError(f"no thread can be started ({self._name}): {error}") from error

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the call is done, on any thread. It may be called twice."""
        self._callbacks.append(callback)
        if self.is_done:
            callback()

    def result(self) -> T:
        """The value that the function returned. Raises the exception that the function raised."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # the call is done

    def abandon(self) -> None:
        """No caller waits for the result any more."""
        self._is_wanted = False
        if self.is_done:
            self._drop()

    def set_exception(self, error: BaseException) -> None:
        """Finish a call that could not be started."""
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
