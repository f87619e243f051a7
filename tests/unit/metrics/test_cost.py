"""Hazard: metrics slow down clients that do not use them, or numbers are lost in a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client import CollectorRegistry

import holdfast
import holdfast.prometheus
from holdfast.core import ports
from holdfast.core.requests import OPERATIONS, ObservedBackend
from holdfast.metrics import _BUFFERED
from tests.support.call_counts import calls_of_a_pair
from tests.support.faulty import NOT_ALL, OK, Faults
from tests.support.telemetry import Telemetry, total

REQUESTS = "holdfast_client_request_duration_seconds_count"


@pytest.fixture
def client(faulty_url: str) -> Iterator[holdfast.Client]:
    with holdfast.Client(faulty_url) as client:
        yield client


def test_a_client_makes_the_same_calls_before_it_is_instrumented_and_after() -> None:
    with holdfast.Client("memory://cost") as client:
        before = calls_of_a_pair(client)
        telemetry, registry = Telemetry(), CollectorRegistry()
        ends = [telemetry.instrument(client), holdfast.prometheus.instrument(client, registry)]
        assert calls_of_a_pair(client) > before
        for end in ends:
            end()
        assert calls_of_a_pair(client) == before
        assert not isinstance(client._engine.backend, ObservedBackend)


OPTIONAL_PORTS: tuple[Any, ...] = (
    *(ports.ListsBySearch, ports.ReleasesLater, ports.ReportsGone, ports.WorksWithoutLoop),
    *(ports.KeepsRecords, ports.AdoptsLeases, ports.ReservesFences, ports.QueuesAtRelease),
)


@pytest.mark.parametrize(
    "url",
    ["memory://", "sqlite://{folder}/locks", "redis://localhost:1", "zookeeper://localhost:1", "etcd://localhost:1"],
)
def test_an_observed_backend_has_the_ports_of_its_backend(url: str, tmp_path: Path) -> None:
    with holdfast.Client(url.format(folder=tmp_path)) as client:
        plain: Any = client._engine.backend
        undo = client._observe_requests(lambda *_: None)
        observed: Any = client._engine.backend
        assert isinstance(observed, ObservedBackend)
        for port in OPTIONAL_PORTS:
            assert isinstance(observed, port) is isinstance(plain, port), port
        names = {name for name in dir(ports.Backend) if not name.startswith("_")} | {"url"}
        assert all(hasattr(observed, name) for name in names)
        assert not isinstance(observed, ports.PreparesRequests)  # the straight path would bypass the observers
        optional = {name for port in OPTIONAL_PORTS for name in dir(port) if not name.startswith("_")}
        assert names | optional >= set(OPERATIONS)
        undo()
        assert client._engine.backend is plain


def test_an_error_of_one_server_of_several_is_an_error_of_the_request(client: holdfast.Client, faults: Faults) -> None:
    requests: list[tuple[str, str]] = []
    client._observe_requests(lambda operation, _, error: requests.append((operation, error)))
    lease = client.lock("a").acquire()
    assert lease is not None
    faults.plan("release", NOT_ALL, OK)
    with pytest.raises(holdfast.BackendError) as raised:
        lease.release()
    assert requests[:2] == [("try_acquire", ""), ("release", type(raised.value).__name__)]


def test_more_numbers_than_the_buffer_takes_are_recorded(client: holdfast.Client) -> None:
    registry = CollectorRegistry()
    holdfast.prometheus.instrument(client, registry)
    pairs = _BUFFERED // 3  # each has four numbers
    for _ in range(pairs):
        with client.lock("a"):
            pass
    exporter = holdfast.prometheus._exporters[registry]
    assert len(exporter._instrumented[0]._buffer) == _BUFFERED
    assert total(registry, "holdfast_lock_acquire_duration_seconds_count") == pairs
    assert total(registry, REQUESTS, operation="release") == pairs


def test_requests_without_events_are_counted(client: holdfast.Client) -> None:
    registry = CollectorRegistry()
    holdfast.prometheus.instrument(client, registry)
    client.locks()
    client.inspect("a")
    assert total(registry, REQUESTS, operation="locks") == total(registry, REQUESTS, operation="inspect") == 1


def test_an_exemplar_shows_the_trace_of_the_caller(client: holdfast.Client) -> None:
    telemetry = Telemetry()
    telemetry.instrument(client, spans=False)
    of_caller = SpanContext(trace_id=7, span_id=8, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with trace.use_span(NonRecordingSpan(of_caller)):
        lease = client.lock("a").acquire()
    assert lease is not None
    lease.release()
    of_collector = SpanContext(trace_id=9, span_id=9, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with trace.use_span(NonRecordingSpan(of_collector)):  # the context of the thread that collects
        points = telemetry.points()
    (acquired,) = points["holdfast.lock.acquire.duration"]
    assert [exemplar.trace_id for exemplar in acquired.exemplars] == [7]
    (held,) = points["holdfast.lock.hold.duration"]
    assert list(held.exemplars) == []
