"""The cost of events and metrics: the time of an acquire and release without and with them, in interleaved rounds.

    python -m benchmarks.metrics_cost [--url URL] [--rounds 30] [--pairs 1000]

Each round measures all variants one after the other, in another order, so that a slow phase of the machine hits all.
`memory://` makes no request to a server: all of its time is our own. Needs the extra `dev`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import holdfast
import holdfast.otel
import holdfast.prometheus

Prepare = Callable[[holdfast.Client], object]


def _otel(client: holdfast.Client, *, requests: bool) -> object:
    provider = MeterProvider([InMemoryMetricReader()])
    return provider, holdfast.otel.instrument(client, meter_provider=provider, requests=requests, spans=False)


VARIANTS: dict[str, Prepare] = {
    "no subscriber": lambda _: None,
    "a subscriber that does nothing": lambda client: client.subscribe(lambda _: None),
    "OpenTelemetry metrics, requests=False": lambda client: _otel(client, requests=False),
    "OpenTelemetry metrics": lambda client: _otel(client, requests=True),
    "Prometheus": lambda client: holdfast.prometheus.instrument(client, CollectorRegistry()),
}


def seconds_per_pair(lock: AbstractContextManager[object], pairs: int) -> float:
    started = time.perf_counter()
    for _ in range(pairs):
        with lock:
            pass
    return (time.perf_counter() - started) / pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="memory://")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=1000)
    arguments = parser.parse_args()

    clients = {name: holdfast.Client(arguments.url) for name in VARIANTS}
    kept = [prepare(clients[name]) for name, prepare in VARIANTS.items()]
    locks = {name: client.lock("cost") for name, client in clients.items()}
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    order = list(VARIANTS)
    for _ in range(arguments.rounds + 1):
        random.shuffle(order)
        for name in order:
            times[name].append(seconds_per_pair(locks[name], arguments.pairs))
    del kept

    bare = times["no subscriber"][1:]  # the first round warms up
    print(f"µs for an acquire and release on {arguments.url}, median of {arguments.rounds} interleaved rounds")
    for name, every in times.items():
        measured = every[1:]
        more = statistics.median(each - base for each, base in zip(measured, bare, strict=True))
        print(f"{statistics.median(measured) * 1e6:8.1f}  {more * 1e6:+7.1f}  {name}")
    for client in clients.values():
        client.close()


if __name__ == "__main__":
    main()
