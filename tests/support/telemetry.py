"""Reads the values of both metrics exporters, and the spans."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from holdfast.otel import instrument


def total(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """The sum of all series with these labels."""
    return sum(
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


class Telemetry:
    """Providers for one test, and the metrics and spans that they have received."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def instrument(self, client: Any, **options: Any) -> Any:
        return instrument(client, meter_provider=self.meters, tracer_provider=self.tracers, **options)

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        resources = [] if data is None else data.resource_metrics
        return {
            metric.name: list(metric.data.data_points)
            for resource in resources
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def total(self, name: str, **attributes: str) -> float:
        """The sum of a counter or gauge, or the count of a histogram, over all series with these attributes."""
        sums = 0.0
        for point in self.points().get(name, []):
            if {key.replace("_", "."): value for key, value in attributes.items()}.items() <= dict(
                point.attributes
            ).items():
                if isinstance(point, HistogramDataPoint):
                    sums += point.count
                else:
                    assert isinstance(point, NumberDataPoint)
                    sums += point.value
        return sums

    def spans(self, prefix: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(prefix)]
