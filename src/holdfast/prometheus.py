"""Metrics of clients for Prometheus: `pip install 'holdfast[prometheus]'`. docs/metrics.md has the table.

>>> import holdfast, holdfast.prometheus
>>> from prometheus_client import CollectorRegistry
>>> registry = CollectorRegistry()  # or leave it out: the default registry of prometheus_client
>>> client = holdfast.Client("memory://")
>>> undo = holdfast.prometheus.instrument(client, registry=registry, name="orders")
>>> with client.lock("order:4711"):
...     registry.get_sample_value("holdfast_lock_held", {"client": "orders", "group": "order:*"})
1
>>> body, content_type = holdfast.prometheus.render(registry)  # for a web server's /metrics
>>> client.close()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.metrics_core import Metric as MetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("holdfast.prometheus needs prometheus-client: pip install 'holdfast[prometheus]'") from error

from holdfast.metrics import METRICS, AnyClient, Exporter, Metric, MetricKind, mutex_of_exporters

_exporters: weakref.WeakKeyDictionary[CollectorRegistry, _PrometheusExporter] = weakref.WeakKeyDictionary()


def instrument(
    client: AnyClient, registry: CollectorRegistry = REGISTRY, *, name: str | None = None, requests: bool = True
) -> Callable[[], None]:
    """Export the metrics of a client. The returned function ends that and removes its series.

    Args:
        client: A Client or an AsyncClient. It is not kept alive. A forked child begins with zero.
        registry: The registry that your web server exports. Several clients can use one.
        name: The label `client` of all its series. Default: the URL of the store without its password. The numbers of
            clients with the same name are added up.
        requests: Also measure the requests to the store: `holdfast_client_request_duration_seconds`.
    """
    with mutex_of_exporters():
        exporter = _exporters.get(registry) or _PrometheusExporter()
        end = exporter.add(client, name, requests=requests)
        if registry not in _exporters:
            registry.register(exporter)
            _exporters[registry] = exporter

    def undo() -> None:
        with mutex_of_exporters():
            end()
            if not exporter.is_used and _exporters.get(registry) is exporter:
                del _exporters[registry]
                registry.unregister(exporter)

    return undo


def render(registry: CollectorRegistry = REGISTRY, accept: str = "") -> tuple[bytes, str]:
    """The answer of a web server to a request for /metrics: its body and its content type.

    Args:
        registry: The registry that clients were instrumented with, for example one of your own: `CollectorRegistry()`.
        accept: The request's header `Accept`, which selects the text format or that of OpenMetrics.
    """
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _PrometheusExporter(Exporter, Collector):
    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self._recorded: dict[Metric, Histogram | Counter] = {}
        self._children: dict[tuple[Metric, tuple[str, ...]], Callable[[float], object]] = {}
        for metric in METRICS:
            head = (metric.prometheus_name, metric.description, metric.prometheus_labels)
            if metric.kind is MetricKind.HISTOGRAM:
                self._recorded[metric] = Histogram(*head, registry=None, buckets=metric.buckets)
            elif metric.kind is MetricKind.COUNTER:
                self._recorded[metric] = Counter(*head, registry=None)

    def record(self, metric: Metric, number: float, labels: tuple[str, ...], context: None) -> None:
        add = self._children.get((metric, labels))
        if add is None:
            child = self._recorded[metric].labels(*labels)
            add = child.observe if isinstance(child, Histogram) else child.inc
            self._children[metric, labels] = add
        add(number)

    def remove(self, name: str) -> None:
        for metric, labels in list(self._children):
            if labels[0] == name:
                del self._children[metric, labels]
                self._recorded[metric].remove(*labels)

    def describe(self) -> Iterable[MetricFamily]:
        return [
            MetricFamily(metric.prometheus_name.removesuffix("_total"), metric.description, _TYPES[metric.kind])
            for metric in METRICS
        ]

    def collect(self) -> Iterable[MetricFamily]:
        self.flush()
        for recorded in self._recorded.values():
            yield from recorded.collect()
        for metric, numbers in self.gauges().items():
            family = GaugeMetricFamily(metric.prometheus_name, metric.description, labels=metric.prometheus_labels)
            for labels, number in numbers.items():
                family.add_metric(labels, number)
            yield family


_TYPES = {
    MetricKind.HISTOGRAM: "histogram",
    MetricKind.COUNTER: "counter",
    MetricKind.SUM: "gauge",
    MetricKind.MAXIMUM: "gauge",
}
