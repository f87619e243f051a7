"""Do revocation requests reach the right lease, and only that one?"""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import (
    Crashed,
    Granted,
    Healed,
    Lost,
    ReleaseStarted,
    RevokeEnded,
    RevokeReceived,
    RevokeStarted,
    StateLost,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker


class RevocationsReceived(Checker):
    """A revocation request is received once by its lease, if that is revocable and held, and by no later lease.

    In a healed world the lease receives it within `revoke_max` after the server has it. Older leases of the lock that
    are still held may receive it too.
    """

    name = "revocations received"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: float | None = None
        self._newest_request: dict[str, RevokeStarted] = {}  # by lock: the request for the greatest fence
        self._requests: defaultdict[str, list[RevokeEnded]] = defaultdict(list)
        self._unnotified: dict[int, Granted] = {}  # revocable leases without a notification
        self._received: dict[int, RevokeReceived] = {}
        self._granted_to: dict[int, Granted] = {}
        self._was_tested = False
        self.on = {
            Granted: self._granted,
            RevokeStarted: self._revoke_started,
            RevokeEnded: self._revoke_ended,
            RevokeReceived: self._revoke_received,
            ReleaseStarted: self._ended,
            Lost: self._ended,
            Crashed: self._crashed,
            StateLost: self._state_lost,
            Healed: self._was_healed,
        }

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _granted(self, event: Granted) -> None:
        if event.revocable:
            self._unnotified[event.ticket] = self._granted_to[event.ticket] = event

    def _revoke_started(self, event: RevokeStarted) -> None:
        self._was_tested = True
        before = self._newest_request.get(event.lock)
        if before is None or event.fence > before.fence:
            self._newest_request[event.lock] = event

    def _revoke_ended(self, event: RevokeEnded) -> None:
        self._requests[event.lock].append(event)

    def _revoke_received(self, event: RevokeReceived) -> None:
        granted = self._granted_to.get(event.ticket)
        if granted is None:
            self.violated(event.at, event.lock, f"{event.client} received a request for an irrevocable lease", event)
            return
        fence = granted.fence
        before = self._received.setdefault(event.ticket, event)
        if before is not event:
            message = f"{event.client}'s lease of {event.lock!r} (fence {fence}) received the same request twice"
            self.violated(event.at, event.lock, message, granted, before, event)
        elif (last := self._newest_request.get(event.lock)) is None or last.fence < fence:
            origin = "no client made" if last is None else f"was for fence {last.fence}"
            message = f"{event.client}'s lease of {event.lock!r} (fence {fence}) received a request that {origin}"
            self.violated(event.at, event.lock, message, last, granted, event)
        self._unnotified.pop(event.ticket, None)

    def _ended(self, event: ReleaseStarted | Lost) -> None:
        granted = self._unnotified.pop(event.ticket, None)
        if granted is not None:
            self._judge(granted, event.at, event)

    def _crashed(self, event: Crashed) -> None:
        for ticket in [ticket for ticket, granted in self._unnotified.items() if granted.client == event.client]:
            del self._unnotified[ticket]

    def _state_lost(self, event: StateLost) -> None:
        """Requests from before need not be received any more, but may be, if they were in flight."""
        if event.kind == "data" and event.majority:
            self._requests.clear()

    def _was_healed(self, event: Healed) -> None:
        self._healed = event.at

    def finish(self, at: float) -> None:
        for granted in self._unnotified.values():
            self._judge(granted, at, None)

    def _judge(self, granted: Granted, at: float, event: ReleaseStarted | Lost | None) -> None:
        """The lease has received no request: report one that the server has had for too long."""
        request = next((each for each in self._requests.get(granted.lock, ()) if each.fence >= granted.fence), None)
        if request is None or self._healed is None:
            return
        since = max(request.at, granted.at, self._healed)
        if at - since > self.promises.revoke_max:
            message = (
                f"{granted.client}'s lease of {granted.lock!r} (fence {granted.fence}) had a revocation request, "
                f"and had not received it {at - since:.3g} s later"
            )
            self.violated(at, granted.lock, message, granted, request, event)
