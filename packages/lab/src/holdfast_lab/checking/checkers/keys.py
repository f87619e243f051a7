"""Does a key of `once` run once, and do all its callers get the result of that run?"""

from __future__ import annotations

from holdfast_lab.checking.history import (
    Crashed,
    Granted,
    OnceCalled,
    OnceEnded,
    RunEnded,
    RunStarted,
    StateLost,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker


class _Key:
    """The runs of one key, as far as the history shows them."""

    def __init__(self) -> None:
        self.starts: list[RunStarted] = []
        self.returned: set[int] = set()  # the tickets of runs whose body has returned
        self.raised: set[int] = set()
        self.completion: OnceEnded | None = None  # the first event that shows a recorded completion
        self.own: OnceEnded | None = None  # the call that reported that it has completed the key


class OneStartPerKey(Checker):
    """A key of `once` starts once, or with retry completes once, and its callers get the result of that run.

    A run whose body raised, with after_error="retry", does not count. A run holds the lock, no run starts after a
    completion is known, and the fences of the runs grow. Calls of running clients end. State that the server lost is
    excused.
    """

    name = "single starts"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._keys: dict[str, _Key] = {}
        self._calls: dict[int, OnceCalled] = {}  # that have not ended
        self._options: dict[str, OnceCalled] = {}
        self._granted: set[int] = set()
        self._excused = False
        self.on = {
            Granted: self._was_granted,
            OnceCalled: self._called,
            RunStarted: self._started,
            RunEnded: self._run_ended,
            OnceEnded: self._ended,
            Crashed: self._crashed,
            StateLost: self._state_lost,
        }

    @property
    def was_tested(self) -> bool:
        return bool(self._keys)

    def _was_granted(self, event: Granted) -> None:
        self._granted.add(event.ticket)

    def _called(self, event: OnceCalled) -> None:
        self._calls[event.ticket] = event
        self._options[event.lock] = event
        self._keys.setdefault(event.lock, _Key())

    def _started(self, event: RunStarted) -> None:
        key, name = self._keys[event.lock], event.lock
        if event.lease not in self._granted:
            self.violated(event.at, name, f"{event.client} runs the key {name!r} without its lock", event)
        earlier = [start for start in key.starts if start.ticket not in key.raised]
        last = earlier[-1] if earlier else None
        if not self._excused:
            if key.completion is not None:
                message = f"{event.client} runs the key {name!r}, which was complete before"
                self.violated(event.at, name, message, key.completion, event)
            elif last is not None and not self._options[name].repeats_crashes:
                message = f"{event.client} runs the key {name!r}, which {last.client} had started before"
                self.violated(event.at, name, message, last, event)
            elif last is not None and event.fence <= last.fence:
                message = f"the run of the key {name!r} has fence {event.fence}, an earlier one {last.fence}"
                self.violated(event.at, name, message, last, event)
        key.starts.append(event)

    def _run_ended(self, event: RunEnded) -> None:
        key = self._keys[event.lock]
        if event.outcome == "returned":
            key.returned.add(event.ticket)
        elif self._options[event.lock].repeats_errors:
            key.raised.add(event.ticket)

    def _ended(self, event: OnceEnded) -> None:
        called = self._calls.pop(event.ticket, None)
        key, name = self._keys[event.lock], event.lock
        if self._excused:
            return
        if event.outcome in ("ran", "done"):
            if event.value not in key.returned:
                message = f"{event.client} got a result of the key {name!r} that no run has returned"
                self.violated(event.at, name, message, event)
            elif key.completion is None:
                key.completion = event
            elif key.completion.value != event.value:
                message = f"{event.client} got another result of the key {name!r} than {key.completion.client}"
                self.violated(event.at, name, message, key.completion, event)
        elif event.outcome in ("interrupted", "failed") and key.completion and called and called.at > key.completion.at:
            message = f"{event.client} was told that the key {name!r} is {event.outcome}, after it was complete"
            self.violated(event.at, name, message, key.completion, called, event)
        if event.outcome == "ran":
            if key.own is not None and key.own is not event:
                message = f"{event.client} has completed the key {name!r}, which {key.own.client} had completed before"
                self.violated(event.at, name, message, key.own, event)
            key.own = event

    def _crashed(self, event: Crashed) -> None:
        for ticket, called in list(self._calls.items()):
            if called.client == event.client:
                del self._calls[ticket]

    def _state_lost(self, event: StateLost) -> None:
        if event.kind == "data" and event.majority:
            self._excused = True

    def finish(self, at: float) -> None:
        for called in self._calls.values():
            if at - called.at > self.promises.wait_max:
                message = f"the call of {called.client} for the key {called.lock!r} has not ended"
                self.violated(at, called.lock, message, called)
