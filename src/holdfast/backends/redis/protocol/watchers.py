"""Which waiter of a client polls often, so that a client that does not take its turn is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.tickets import POLL_INTERVAL_BEHIND, Claim

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

WATCH = 1.25  # seconds between the polls of one waiter of each client


class Watchers:
    """The one waiter of this client for each lock that polls often; the others poll seldom.

    If the client whose turn it is does not respond within a second, the next poll of any other waiter skips it. One
    frequent poller per client is enough for that. The second poll of every new waiter is soon too, so that a client has
    such a poller at any time, also while its waiters change.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._waiting: dict[str, dict[str, float]] = {}  # lock -> nonce -> next poll; in order of the last poll
        self._watching: dict[str, str] = {}  # lock -> nonce of the waiter that polls often

    def next_poll(self, claim: Claim, now: float) -> float:
        """Note a poll of this waiter. Returns the seconds until its next one."""
        with self._mutex:
            waiting = self._waiting.setdefault(claim.name, {})
            is_new = waiting.pop(claim.nonce, None) is None
            watcher = self._watching.setdefault(claim.name, claim.nonce)
            seconds = WATCH if is_new or watcher == claim.nonce else POLL_INTERVAL_BEHIND
            waiting[claim.nonce] = now + seconds
        return seconds

    def stop(self, claim: Claim, now: float) -> str | None:
        """The ticket no longer waits. Returns the nonce of another one that has to poll now instead, if any."""
        if not self._waiting:
            return None
        with self._mutex:
            waiting = self._waiting.get(claim.name, {})
            if waiting.pop(claim.nonce, None) is None:
                return None
            if not waiting:
                del self._waiting[claim.name], self._watching[claim.name]
                return None
            if self._watching[claim.name] != claim.nonce:
                return None
            # The one that polled last is usually the last in the queue, so it will wait the longest.
            successor, polls_at = next(reversed(waiting.items()))
            self._watching[claim.name] = successor
            return successor if polls_at > now + WATCH else None
