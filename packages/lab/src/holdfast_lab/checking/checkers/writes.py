"""Does the protected resource accept only writes of the current holder? Without fences it may not, which is noted."""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import Plain, Read, Wrote
from holdfast_lab.checking.promises import Promises

from .base import Checker


class FencedWrites(Checker):
    """A resource that refuses stale fences never goes back to an older holder and never loses an accepted write.

    A write is lost if the next writer computed its value from another one. The resource refuses a fence only if it has
    seen a greater one. A resource cannot tell two leases with the same fence apart; another checker reports them.
    Anomalies on a resource that checks no fences are noted, not reported as violations of the lock.
    """

    name = "fenced writes"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._resources: defaultdict[str, _Resource] = defaultdict(_Resource)
        self.refused = 0
        self.stale_writes = self.lost_updates = 0  # on resources that check no fences
        self.on = {Read: self._read, Wrote: self._wrote}

    @property
    def was_tested(self) -> bool:
        return bool(self._resources)

    def _read(self, event: Read) -> None:
        resource = self._resources[event.lock]
        if event.fenced:
            self._judge_fence(resource, event)
        if not event.accepted:
            return
        if event.fenced and resource.last is not None and event.value != resource.value:
            message = (
                f"{event.client} read {event.value!r} from {event.lock!r}, where {resource.value!r} had been written"
            )
            self.violated(event.at, event.lock, message, resource.last, event)
        if resource.last is None:
            resource.last, resource.value = event, event.value
        self._update_newest(resource, event)

    def _wrote(self, event: Wrote) -> None:
        resource = self._resources[event.lock]
        if event.fenced:
            self._judge_fence(resource, event)
        elif resource.newest is not None and event.fence < resource.newest.fence:
            self.stale_writes += 1
            message = (
                f"{event.client} wrote to {event.lock!r} with fence {event.fence} after a newer holder; no fence check"
            )
            self.note(event.at, event.lock, message, resource.newest, event)
        if not event.accepted:
            return
        if event.before is not None and resource.last is not None and event.before != resource.value:
            message = (
                f"{event.client} replaced {resource.value!r} in {event.lock!r} by {event.value!r}, "
                f"which it had computed from {event.before!r}"
            )
            if event.fenced and _has_same_fence(resource.last, event):
                self.note(event.at, event.lock, message + "; both have the same fence", resource.last, event)
            elif event.fenced:
                self.violated(event.at, event.lock, message, resource.last, event)
            else:
                self.lost_updates += 1
                self.note(event.at, event.lock, message + "; no fence check", resource.last, event)
        resource.last, resource.value = event, event.value
        self._update_newest(resource, event)

    def _judge_fence(self, resource: _Resource, event: Read | Wrote) -> None:
        newest = resource.newest
        self.refused += not event.accepted
        is_stale = newest is not None and event.fence < newest.fence
        if event.accepted and is_stale:
            message = (
                f"{event.lock!r} accepted fence {event.fence} of {event.client} although it had seen a greater one"
            )
            self.violated(event.at, event.lock, message, newest, event)
        elif not event.accepted and not is_stale:
            message = (
                f"{event.lock!r} refused fence {event.fence} of {event.client} although it had seen no greater one"
            )
            self.violated(event.at, event.lock, message, newest, event)

    @staticmethod
    def _update_newest(resource: _Resource, event: Read | Wrote) -> None:
        # A read without a fence does not change the resource.
        if (event.fenced or isinstance(event, Wrote)) and (
            resource.newest is None or event.fence > resource.newest.fence
        ):
            resource.newest = event


def _has_same_fence(last: Read | Wrote, event: Wrote) -> bool:
    return event.fence == last.fence and event.ticket != last.ticket


class _Resource:
    """Its value, the event that set it, and the event with the greatest fence that it has seen."""

    __slots__ = ("last", "newest", "value")

    def __init__(self) -> None:
        self.last: Read | Wrote | None = None
        self.newest: Read | Wrote | None = None
        self.value: Plain = None
