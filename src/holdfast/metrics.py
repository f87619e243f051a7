"""The metrics of clients: names, units, labels, bucket boundaries, and how events, stats and requests become numbers.

`holdfast.prometheus` and `holdfast.otel` export them. Counters and histograms are made of events and of the times of
requests, gauges of `client.stats()` at the moment they are read. So a gauge is 0 as soon as nothing is held or waited
for, even if events were lost. Nothing here imports a metrics library.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from holdfast.base_client import BaseClient
from holdfast.core.events import Event
from holdfast.core.stats import GroupStats, Stats
from holdfast.errors import ConfigurationError
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex, mutex_of_process

# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_HOLDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 14400)
_REQUESTS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1)
_PROMETHEUS_UNITS = {"s": "_seconds", "1": "_ratio"}


class MetricKind(Enum):
    """How the numbers of a metric are aggregated."""

    HISTOGRAM = "histogram"
    COUNTER = "counter"
    SUM = "sum"  # a gauge whose numbers of several clients can be added
    MAXIMUM = "maximum"  # a gauge of which only the largest number counts


class Metric(NamedTuple):
    """A metric under its OpenTelemetry name."""

    kind: MetricKind
    name: str
    unit: str
    description: str
    labels: tuple[str, ...] = ("client", "group")
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name by the rules of Prometheus: the unit, and `total` for counters."""
        suffix = "_total" if self.kind is MetricKind.COUNTER else ""
        return f"{self.name.replace('.', '_')}{_PROMETHEUS_UNITS.get(self.unit, '')}{suffix}"

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(label.replace(".", "_") for label in self.labels)


ACQUIRE_DURATION = Metric(
    MetricKind.HISTOGRAM,
    "holdfast.lock.acquire.duration",
    "s",
    "Time from the begin of an attempt until the lock was acquired or the attempt ended without it.",
    ("client", "group", "primitive", "outcome", "error.type"),
    _WAITS,
)
HOLD_DURATION = Metric(
    MetricKind.HISTOGRAM,
    "holdfast.lock.hold.duration",
    "s",
    "Time from the acquisition of a lease until it was released or lost.",
    ("client", "group", "primitive", "outcome"),
    _HOLDS,
)
LOST = Metric(
    MetricKind.COUNTER,
    "holdfast.lock.lost",
    "{lease}",
    "Leases that ended before they were released.",
    ("client", "group", "primitive", "outcome"),
)
RENEWAL_REMAINING = Metric(
    MetricKind.HISTOGRAM,
    "holdfast.lock.renewal.remaining",
    "1",
    "Share of the ttl that was left when the lease was renewed.",
    ("client", "group"),
    _SHARES,
)
HELD = Metric(MetricKind.SUM, "holdfast.lock.held", "{lease}", "Leases that are held.")
WAITING = Metric(MetricKind.SUM, "holdfast.lock.waiting", "{call}", "Calls that have not acquired their lock yet.")
OLDEST_WAIT = Metric(MetricKind.MAXIMUM, "holdfast.lock.oldest_wait", "s", "The longest of the present waits.")
OLDEST_HOLD = Metric(MetricKind.MAXIMUM, "holdfast.lock.oldest_hold", "s", "The age of the oldest lease.")
LEADING = Metric(MetricKind.SUM, "holdfast.election.leading", "{lease}", "Elections that the client leads.")
ONCE_CALLS = Metric(
    MetricKind.COUNTER,
    "holdfast.once.calls",
    "{call}",
    "Calls of once and of once_per functions: run, skipped (busy, done, …), or failed to acquire their lock.",
    ("client", "group", "outcome"),
)
REQUEST_DURATION = Metric(
    MetricKind.HISTOGRAM,
    "holdfast.client.request.duration",
    "s",
    "Time of a request to the store.",
    ("client", "operation", "error.type"),
    _REQUESTS,
)
PENDING_RELEASES = Metric(
    MetricKind.SUM,
    "holdfast.client.pending_releases",
    "{release}",
    "Releases without an answer, which are repeated in the background.",
    ("client",),
)
METRICS = (
    ACQUIRE_DURATION,
    HOLD_DURATION,
    LOST,
    RENEWAL_REMAINING,
    HELD,
    WAITING,
    OLDEST_WAIT,
    OLDEST_HOLD,
    LEADING,
    ONCE_CALLS,
    REQUEST_DURATION,
    PENDING_RELEASES,
)

# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_ONCE = ("once_per", "once")
STORE_ERRORS = ("unavailable", "unknown")  # outcomes of attempts that the store has not answered
# Numbers that wait to be recorded. A call of a metrics library takes longer than all of our own work for an event, so
# it is not made while the lock is held, but when the numbers are read; above the first limit, by calls that add more.
_BUFFERED = 10_000  # about 2 MB
_BUFFERED_MAX = 2 * _BUFFERED  # only requests without events, for example of `locks()`, can reach this

AnyClient = BaseClient[Any, Any, Any, Any, Any]


class _Instrumented:
    """One client whose numbers are recorded under `name`. Does not keep the client alive."""

    def __init__(self, client: AnyClient, name: str, exporter: Exporter, *, requests: bool) -> None:
        self.name = name
        self._client = weakref.ref(client)
        self._record = exporter.record
        self._context = exporter.context
        self._elections: dict[str, bool] = {}  # by group that was ever used: whether it has elections
        # Any thread appends to it, also those of the keeper, which must not wait for a metrics library.
        self._buffer: deque[tuple[Metric, float, tuple[str, ...], Any]] = deque(maxlen=_BUFFERED_MAX)
        self._undo = [client.subscribe(self._event)]
        if requests:
            self._undo.append(client._observe_requests(self._request))  # noqa: SLF001

    def end(self) -> None:
        for undo in self._undo:
            undo()
        self.flush()

    @property
    def is_gone(self) -> bool:
        """The program has dropped the client."""
        return self._client() is None

    def forget(self) -> None:
        """In a forked child: nothing has happened yet."""
        self._elections.clear()
        self._buffer.clear()

    def flush(self, most: int = 0) -> None:
        """Record buffered numbers until at most this many are left."""
        buffer, record = self._buffer, self._record
        while len(buffer) > most:
            try:
                number = buffer.popleft()
            except IndexError:  # another thread was faster
                return
            record(*number)

    def gauges(self) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
        """The present numbers; 0 for groups that were used before."""
        client = self._client()
        stats = Stats() if client is None else client.stats()
        name, elections = self.name, self._elections
        for group in {**elections, **stats.groups}:
            numbers = stats.groups.get(group, GroupStats())
            labels = (name, group)
            yield HELD, labels, numbers.held
            yield WAITING, labels, numbers.waiting
            yield OLDEST_WAIT, labels, numbers.oldest_wait
            yield OLDEST_HOLD, labels, numbers.oldest_hold
            elections[group] = elections.get(group, False) or numbers.leading > 0
            if elections[group]:
                yield LEADING, labels, numbers.leading
        yield PENDING_RELEASES, (name,), stats.pending_releases

    def _request(self, operation: str, seconds: float, error: str) -> None:
        self._buffer.append((REQUEST_DURATION, seconds, (self.name, operation, error), None))

    def _event(self, event: Event) -> None:
        kind, name, group, outcome = event.kind, self.name, event.group, event.outcome
        primitive, seconds = event.primitive, event.seconds or 0.0
        if kind == "acquiring":
            if not self._elections.get(group):
                self._elections[group] = primitive == "election"
            return
        add, context = self._buffer.append, self._context()
        match kind:
            case "acquired":
                add((ACQUIRE_DURATION, seconds, (name, group, primitive, "acquired", ""), context))
                if primitive == "once_per":
                    add((ONCE_CALLS, 1, (name, group, "run"), context))
            case "released":
                add((HOLD_DURATION, seconds, (name, group, primitive, outcome), context))
            case "not acquired":
                error = outcome if outcome in STORE_ERRORS else ""
                add((ACQUIRE_DURATION, seconds, (name, group, primitive, outcome, error), context))
                if primitive in _ONCE and outcome not in ("busy", "timeout"):  # those are `skipped`
                    add((ONCE_CALLS, 1, (name, group, outcome), context))
            case "lost":
                add((HOLD_DURATION, seconds, (name, group, primitive, outcome), context))
                add((LOST, 1, (name, group, primitive, outcome), context))
            case "renewed":
                add((RENEWAL_REMAINING, seconds / event.ttl if event.ttl else 0.0, (name, group), context))
            case "started":
                add((ONCE_CALLS, 1, (name, group, "run"), context))
            case "skipped" if primitive in _ONCE:
                add((ONCE_CALLS, 1, (name, group, outcome), context))
        if len(self._buffer) > _BUFFERED:
            self.flush(_BUFFERED)


_mutexes: dict[int, Mutex] = {}


def mutex_of_exporters() -> Mutex:
    """To be locked where an exporter is created, added or removed: several threads may instrument their clients."""
    return mutex_of_process(_mutexes)


class Exporter(system.Forkable):
    """The clients whose numbers go to one registry or provider. Exists once for each of those."""

    def __init__(self) -> None:
        self._instrumented: list[_Instrumented] = []  # several threads use it; each operation is atomic
        system.on_fork(self)

    def add(self, client: AnyClient, name: str | None, *, requests: bool) -> Callable[[], None]:
        """Record the numbers of a client. The returned function ends that."""
        if not isinstance(client, BaseClient):
            raise ConfigurationError(f"instrument() takes a Client or an AsyncClient, not {client!r}")
        added = _Instrumented(client, client.url if name is None else name, self, requests=requests)
        self._instrumented.append(added)

        def undo() -> None:
            added.end()
            if self._take_out(added) and all(other.name != added.name for other in self._instrumented):
                self.remove(added.name)

        return undo

    @property
    def is_used(self) -> bool:
        return bool(self._instrumented)

    def gauges(self) -> dict[Metric, dict[tuple[str, ...], float]]:
        """The present numbers. Clients with the same name are added up."""
        numbers: dict[Metric, dict[tuple[str, ...], float]] = {
            metric: {} for metric in METRICS if metric.kind in (MetricKind.SUM, MetricKind.MAXIMUM)
        }
        for client in list(self._instrumented):
            for metric, labels, number in client.gauges():
                present = numbers[metric].get(labels, 0)
                is_sum = metric.kind is MetricKind.SUM
                numbers[metric][labels] = present + number if is_sum else max(present, number)
        return numbers

    def flush(self) -> None:
        """Record the buffered numbers of all clients. Called before the numbers are read."""
        for client in list(self._instrumented):
            client.flush()
            if client.is_gone:
                self._take_out(client)

    def context(self) -> Any:
        """The context of the caller at the time of the event, for `record`."""
        return None

    def record(self, metric: Metric, number: float, labels: tuple[str, ...], context: Any) -> None:
        """Add a number to a counter or histogram. The values of the labels have the order of `metric.labels`."""
        raise NotImplementedError  # in each exporter

    def remove(self, name: str) -> None:
        """No client has this name any more: remove its series, if the library can do so."""

    def reset(self) -> None:
        """In a forked child: begin again with zero, without a mutex that another thread may have held at the fork.

        Nothing to do if the library handles forks itself.
        """

    def _take_out(self, client: _Instrumented) -> bool:
        """Returns False if it was taken out before."""
        try:
            self._instrumented.remove(client)
        except ValueError:
            return False
        return True

    def _after_fork(self) -> None:
        for client in self._instrumented:
            client.forget()
        self.reset()
