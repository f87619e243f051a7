"""The cost of events and metrics: the time of an acquire and release without and with them, in interleaved rounds.

    python -m benchmarks.metrics_cost [--url URL] [--rounds 30] [--pairs 1000]

Each round measures all variants one after the other, in another order, so that a slow phase of the machine hits all.
The time is the processor time of the calling thread, so other processes count little. `memory://` makes no request
to a server: all of its time is our own. After each round the metrics are collected, which records the buffered numbers;
that time is printed apart. Above 2,500 pairs the buffer is full, and the calls record numbers themselves.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import holdfast
import holdfast.otel
import holdfast.prometheus

Collect = Callable[[], object]


def _otel(client: holdfast.Client, *, requests: bool) -> Collect:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    holdfast.otel.instrument(client, meter_provider=provider, requests=requests, spans=False)
    return reader.get_metrics_data


def _prometheus(client: holdfast.Client) -> Collect:
    registry = CollectorRegistry()
    holdfast.prometheus.instrument(client, registry)
    return lambda: holdfast.prometheus.render(registry)


def _subscriber(client: holdfast.Client) -> Collect:
    client.subscribe(lambda _: None)
    return lambda: None


VARIANTS: dict[str, Callable[[holdfast.Client], Collect]] = {
    "no subscriber": lambda _: lambda: None,
    "a subscriber that does nothing": _subscriber,
    "OpenTelemetry metrics, requests=False": lambda client: _otel(client, requests=False),
    "OpenTelemetry metrics": lambda client: _otel(client, requests=True),
    "Prometheus": _prometheus,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="memory://")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=1000)
    arguments = parser.parse_args()
    clients = {name: holdfast.Client(arguments.url) for name in VARIANTS}
    collects = {name: prepare(clients[name]) for name, prepare in VARIANTS.items()}
    locks = {name: client.lock("cost") for name, client in clients.items()}
    calls: dict[str, list[float]] = {name: [] for name in VARIANTS}
    collections: dict[str, list[float]] = {name: [] for name in VARIANTS}

    order = list(VARIANTS)
    for _ in range(arguments.rounds + 1):
        random.shuffle(order)
        for name in order:
            lock, started = locks[name], time.thread_time()
            for _ in range(arguments.pairs):
                with lock:
                    pass
            ended = time.thread_time()
            collects[name]()
            calls[name].append((ended - started) / arguments.pairs)
            collections[name].append((time.thread_time() - ended) / arguments.pairs)

    bare = calls["no subscriber"][1:]  # the first round warms up
    print(f"µs of processor time a pair on {arguments.url}, medians of {arguments.rounds} interleaved rounds")
    print("    pair     more  later")
    for name in VARIANTS:
        pair, later = calls[name][1:], collections[name][1:]
        more = statistics.median(each - base for each, base in zip(pair, bare, strict=True))
        print(f"{statistics.median(pair) * 1e6:8.1f} {more * 1e6:+8.1f} {statistics.median(later) * 1e6:6.1f}  {name}")
    for client in clients.values():
        client.close()


if __name__ == "__main__":
    main()
