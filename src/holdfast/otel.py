"""Metrics and spans of clients for OpenTelemetry: `pip install 'holdfast[otel]'`. docs/metrics.md has the tables.

>>> import holdfast, holdfast.otel
>>> client = holdfast.Client("memory://")
>>> undo = holdfast.otel.instrument(client)  # to the providers that your program has set, in any order
>>> with client.lock("order:4711"):  # the spans "acquire order:*" and "hold order:*"
...     pass
>>> undo()
>>> client.close()
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context, get_current, set_value
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("holdfast.otel needs opentelemetry-api: pip install 'holdfast[otel]'") from error

from holdfast import __version__
from holdfast.core.events import Event
from holdfast.core.tickets import LockInfo
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.metrics import METRICS, STORE_ERRORS, AnyClient, Exporter, Metric, MetricKind, mutex_of_exporters
from holdfast.runtimes import system

_PROPAGATOR = TraceContextTextMapPropagator()
# It is not empty, because the SDK replaces an empty context with the current one: that of the thread that flushes.
_NO_SPAN = set_value("holdfast", True, Context())  # noqa: FBT003


class _GlobalProvider:
    """In place of the global provider, which a program may set later."""


_exporters: weakref.WeakKeyDictionary[object, _OtelExporter] = weakref.WeakKeyDictionary()


def instrument(
    client: AnyClient,
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    name: str | None = None,
    requests: bool = True,
    spans: bool = True,
    propagate: bool = False,
) -> Callable[[], None]:
    """Export the metrics and spans of a client. The returned function ends that.

    The span `acquire {group}` lasts from the begin of an attempt to its end; its status is ERROR only if the store did
    not answer. The span `hold {group}` lasts as long as the lease and links to it; its status is ERROR if the lease was
    lost. Both are children of the caller's current span. Neither becomes the current span, because a lease may be
    released by another thread or task, so spans of the body are their siblings.

    Args:
        client: A Client or an AsyncClient. It is not kept alive.
        meter_provider: Default: the global one.
        tracer_provider: Default: the global one.
        name: The attribute `client` of metrics and spans. Default: the URL of the store without its password.
        requests: Also measure the requests to the store: `holdfast.client.request.duration`.
        spans: Also make spans.
        propagate: Link the span of an attempt that waits to the trace of the lock's holder. The records of this
            client's locks in the store then show the trace of their callers, and each attempt that is queued reads the
            record of the holder, in the background. An attempt that waits only for a moment may get no link.
    """
    if propagate and not spans:
        raise ConfigurationError("propagate=True links spans: remove spans=False")
    ends = [_exporter_of(meter_provider).add(client, name, requests=requests)]
    if spans:
        tracer = trace.get_tracer("holdfast", __version__, tracer_provider)
        ends.append(_Spans(client, client.url if name is None else name, tracer, propagate=propagate).end)

    def undo() -> None:
        for end in ends:
            end()

    return undo


def _exporter_of(provider: MeterProvider | None) -> _OtelExporter:
    key = _GlobalProvider if provider is None else provider
    with mutex_of_exporters():
        exporter = _exporters.get(key)
        if exporter is None:
            exporter = _exporters[key] = _OtelExporter(provider)
        return exporter


class _OtelExporter(Exporter):
    """It has no `remove`, because the API cannot remove a series, and no `reset`, because the SDK handles forks."""

    def __init__(self, provider: MeterProvider | None) -> None:
        super().__init__()
        meter = metrics.get_meter("holdfast", __version__, provider)
        self._recorders: dict[Metric, Callable[[float, dict[str, str], Context], None]] = {}
        self._attributes: dict[tuple[Metric, tuple[str, ...]], dict[str, str]] = {}
        for metric in METRICS:
            name, unit, text = metric.name, metric.unit, metric.description
            if metric.kind is MetricKind.HISTOGRAM:
                boundaries = metric.buckets
                histogram = meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=boundaries)
                self._recorders[metric] = histogram.record
            elif metric.kind is MetricKind.COUNTER:
                self._recorders[metric] = meter.create_counter(name, unit, text).add
            elif metric.kind is MetricKind.SUM:
                meter.create_observable_up_down_counter(name, [self._reader(metric)], unit, text)
            else:
                meter.create_observable_gauge(name, [self._reader(metric)], unit, text)

    def context(self) -> Context:
        """The current context, for exemplars: they show the trace in which a number was measured."""
        return get_current()

    def record(self, metric: Metric, number: float, labels: tuple[str, ...], context: Context | None) -> None:
        self._recorders[metric](number, self._attributes_of(metric, labels), context or _NO_SPAN)

    def _attributes_of(self, metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
        attributes = self._attributes.get((metric, labels))
        if attributes is None:
            attributes = {key: value for key, value in zip(metric.labels, labels, strict=True) if value}
            self._attributes[metric, labels] = attributes
        return attributes

    def _reader(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        ref = weakref.ref(self)  # the provider of a test that has ended keeps nothing alive

        def read(_: CallbackOptions) -> Iterable[Observation]:
            exporter = ref()
            if exporter is None:
                return []
            exporter.flush()
            return [
                Observation(number, exporter._attributes_of(metric, labels))  # noqa: SLF001
                for labels, number in exporter.gauges()[metric].items()
            ]

        return read


class _Spans(system.Forkable):
    """The spans of one client's attempts and leases, by the numbers of the attempts."""

    def __init__(self, client: AnyClient, name: str, tracer: trace.Tracer, *, propagate: bool) -> None:
        self._client = weakref.ref(client) if propagate else None
        if propagate:
            client._events.trace = _traceparent  # noqa: SLF001
        self._name = name
        self._tracer = tracer
        self._acquiring: dict[int, Span] = {}
        self._holding: dict[int, Span] = {}
        self._unsubscribe = client.subscribe(self._event)
        system.on_fork(self)

    def end(self) -> None:
        self._unsubscribe()
        client = None if self._client is None else self._client()
        if client is not None:
            client._events.trace = None  # noqa: SLF001
        for spans in (self._acquiring, self._holding):
            while spans:
                spans.popitem()[1].end()

    def _event(self, event: Event) -> None:
        match event.kind:
            case "acquiring":
                self._acquiring[event.attempt] = self._start(event, "acquire", SpanKind.CLIENT)
            case "acquired":
                acquire = self._acquiring.pop(event.attempt, None)
                links = [] if acquire is None else [Link(acquire.get_span_context())]
                self._holding[event.attempt] = self._start(event, "hold", SpanKind.INTERNAL, links)
                if acquire is not None:
                    acquire.set_attributes({"outcome": "acquired", "holdfast.fence": event.fence or 0})
                    acquire.end()
            case "not acquired":
                _end(self._acquiring.pop(event.attempt, None), event, is_error=event.outcome in STORE_ERRORS)
            case "lost" | "released" as kind:
                _end(self._holding.pop(event.attempt, None), event, is_error=kind == "lost")
            case "queued":
                span = self._acquiring.get(event.attempt)
                if span is not None:
                    span.add_event("queued", {"holder": event.reason or ""})
                    if self._client is not None:
                        self._link_to_holders(self._client, event.lock, span)
            case "started" | "renewal failed" | "revoke requested" as kind:
                span = self._holding.get(event.attempt)
                if span is not None:
                    span.add_event(kind, {"error.type": event.outcome} if event.outcome else None)
            case _:
                pass

    def _start(self, event: Event, verb: str, kind: SpanKind, links: Iterable[Link] = ()) -> Span:
        attributes: dict[str, str | int | float] = {
            "client": self._name,
            "group": event.group,
            "primitive": event.primitive,
            "holdfast.lock": event.lock,
            "holdfast.attempt": event.attempt,
        }
        if event.ttl is not None:
            attributes["holdfast.ttl"] = event.ttl
        if event.fence is not None:
            attributes["holdfast.fence"] = event.fence
        return self._tracer.start_span(f"{verb} {event.group}", kind=kind, attributes=attributes, links=[*links])

    def _link_to_holders(self, client_ref: weakref.ref[AnyClient], lock: str, span: Span) -> None:
        """Read the record of the lock in the background, where it delays no call and no lease."""
        client = client_ref()
        if client is None:
            return

        store: Any = client  # both kinds have `inspect`; that of an AsyncClient has to be awaited

        async def add_later(pending_info: Awaitable[LockInfo]) -> None:
            with suppress(HoldfastError):
                _add_links(span, await pending_info)

        def read() -> object:
            with suppress(HoldfastError):
                info = store.inspect(lock)
                if not isinstance(info, LockInfo):
                    return add_later(info)
                _add_links(span, info)
            return None

        client._engine.runtime.call(read)  # noqa: SLF001

    def _after_fork(self) -> None:
        """In a forked child: the open spans belong to the parent."""
        self._acquiring.clear()
        self._holding.clear()


def _traceparent() -> str:
    """The caller's current span, in the form of the W3C header; "" if there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent", "")


def _add_links(span: Span, info: LockInfo) -> None:
    for holder in info.holders:
        context = trace.get_current_span(
            _PROPAGATOR.extract({"traceparent": holder.trace}, _NO_SPAN)
        ).get_span_context()
        if context.is_valid and span.is_recording():
            span.add_link(context, {"holdfast.holder": str(holder), "holdfast.fence": holder.fence or 0})


def _end(span: Span | None, event: Event, *, is_error: bool) -> None:
    if span is not None:
        span.set_attribute("outcome", event.outcome)
        if is_error:
            span.set_attribute("error.type", event.outcome)
            span.set_status(Status(StatusCode.ERROR, event.reason))
        span.end()
