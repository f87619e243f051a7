"""Does the protected resource keep its history? With fences it must; without, this shows what they are for."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import Plain, Read, Wrote
from holdfast.checking.promises import Promises

from .base import Checker


class FencedWrites(Checker):
    """A resource that refuses stale fences never goes back to an older holder and never loses an accepted write.

    Lost is a write whose writer worked on something else than the value that it replaced. Nothing is refused unless a
    greater fence had been seen. Two leases with one fence are beyond a resource; where they must not be, that is broken
    by them, and not by what is written. What happens to a resource that checks no fences is noted, not held against the
    lock.
    """

    name = "fenced writes"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._resources: defaultdict[str, _Resource] = defaultdict(_Resource)
        self.refused = 0
        self.stale_writes = self.lost_updates = 0  # where nobody checked fences
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
            what = f"{event.client} read {event.value!r} from {event.lock!r}, where {resource.value!r} had been written"
            self.violated(event.at, event.lock, what, resource.last, event)
        if resource.last is None:
            resource.last, resource.value = event, event.value
        self._saw(resource, event)

    def _wrote(self, event: Wrote) -> None:
        resource = self._resources[event.lock]
        if event.fenced:
            self._judge_fence(resource, event)
        elif resource.newest is not None and event.fence < resource.newest.fence:
            self.stale_writes += 1
            what = (
                f"{event.client} wrote to {event.lock!r} with fence {event.fence} after a newer holder; no fence check"
            )
            self.note(event.at, event.lock, what, resource.newest, event)
        if not event.accepted:
            return
        if event.before is not None and resource.last is not None and event.before != resource.value:
            what = (
                f"{event.client} replaced {resource.value!r} in {event.lock!r} by {event.value!r}, "
                f"which it had worked out from {event.before!r}"
            )
            if event.fenced and _has_same_fence(resource.last, event):
                self.note(event.at, event.lock, what + "; both have the same fence", resource.last, event)
            elif event.fenced:
                self.violated(event.at, event.lock, what, resource.last, event)
            else:
                self.lost_updates += 1
                self.note(event.at, event.lock, what + "; no fence check", resource.last, event)
        resource.last, resource.value = event, event.value
        self._saw(resource, event)

    def _judge_fence(self, resource: _Resource, event: Read | Wrote) -> None:
        newest = resource.newest
        self.refused += not event.accepted
        is_stale = newest is not None and event.fence < newest.fence
        if event.accepted and is_stale:
            what = f"{event.lock!r} accepted fence {event.fence} of {event.client} although it had seen a greater one"
            self.violated(event.at, event.lock, what, newest, event)
        elif not event.accepted and not is_stale:
            what = f"{event.lock!r} refused fence {event.fence} of {event.client} although it had seen no greater one"
            self.violated(event.at, event.lock, what, newest, event)

    @staticmethod
    def _saw(resource: _Resource, event: Read | Wrote) -> None:
        # A read that shows no fence leaves no trace on the resource.
        if (event.fenced or isinstance(event, Wrote)) and (
            resource.newest is None or event.fence > resource.newest.fence
        ):
            resource.newest = event


def _has_same_fence(last: Read | Wrote, event: Wrote) -> bool:
    return event.fence == last.fence and event.ticket != last.ticket


class _Resource:
    """What it holds, since which event, and the event with the greatest fence that it accepted."""

    __slots__ = ("last", "newest", "value")

    def __init__(self) -> None:
        self.last: Read | Wrote | None = None
        self.newest: Read | Wrote | None = None
        self.value: Plain = None
