"""Hazard: numbers do not add up, spans never end, or a span reports an error that did not happen."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from holdfast.metrics import METRICS, MetricKind
from holdfast_lab.conformance.lab import Lab, until
from tests.support.faulty import DOWN, OK, Faults
from tests.support.processes import eventually
from tests.support.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def client(faulty_url: str) -> Any:
    with holdfast.Client(faulty_url) as client:
        yield client


async def test_the_metrics_of_a_lease(lab: Lab, telemetry: Telemetry) -> None:
    actor = lab.actor()
    undo = telemetry.instrument(actor.client, name="c")
    lease = await actor(lambda client: client.lock("order:1", ttl=20).acquire())
    assert telemetry.total("holdfast.lock.held", client="c", group="order:*") == 1
    assert telemetry.total("holdfast.lock.oldest_hold", group="order:*") > 0
    await actor(lambda _: lease.release())
    assert telemetry.total("holdfast.lock.held") == telemetry.total("holdfast.lock.waiting") == 0
    assert telemetry.total("holdfast.lock.acquire.duration", outcome="acquired", primitive="lock") == 1
    assert telemetry.total("holdfast.lock.hold.duration", outcome="released") == 1
    for operation in ("try_acquire", "release"):
        assert telemetry.total("holdfast.client.request.duration", operation=operation) == 1
    points = telemetry.points()
    assert all("error.type" not in point.attributes for point in points["holdfast.lock.acquire.duration"])
    for metric in METRICS:
        if metric.kind is MetricKind.HISTOGRAM and metric.name in points:
            assert tuple(points[metric.name][0].explicit_bounds) == metric.buckets
    undo()
    await actor(lambda client: client.lock("order:1", timeout=0).acquire())
    assert telemetry.total("holdfast.lock.acquire.duration") == 1
    assert telemetry.total("holdfast.lock.held") == 0


def test_several_clients_use_one_provider(telemetry: Telemetry, faulty_url: str) -> None:
    with holdfast.Client(faulty_url) as a, holdfast.Client(faulty_url) as b:
        for client, name in ((a, "a"), (b, "b")):
            telemetry.instrument(client, name=name)
        with a.lock("x"), b.lock("y"):
            for name in "ab":
                assert telemetry.total("holdfast.lock.held", client=name) == 1


def test_the_spans_of_a_lease_are_children_of_the_caller(client: holdfast.Client, telemetry: Telemetry) -> None:
    telemetry.instrument(client, name="c")
    tracer = telemetry.tracers.get_tracer("test")
    with tracer.start_as_current_span("work") as work, client.lock("order:1", ttl=20) as lease:
        assert trace.get_current_span() is work
        with tracer.start_as_current_span("body"):
            pass
    (acquire,) = telemetry.spans("acquire")
    (hold,) = telemetry.spans("hold")
    (body,) = telemetry.spans("body")
    assert acquire.name == "acquire order:*"
    assert acquire.kind is SpanKind.CLIENT
    assert hold.name == "hold order:*"
    assert hold.kind is SpanKind.INTERNAL
    assert [link.context for link in hold.links] == [acquire.context]
    for span in (acquire, hold, body):
        assert span.parent is not None
        assert span.parent.span_id == work.get_span_context().span_id
        assert span.status.status_code is StatusCode.UNSET
    for span, outcome in ((acquire, "acquired"), (hold, "released")):
        assert (
            dict(span.attributes or {}).items()
            >= {
                "client": "c",
                "group": "order:*",
                "primitive": "lock",
                "outcome": outcome,
                "holdfast.lock": "order:1",
                "holdfast.fence": lease.fence,
                "holdfast.ttl": 20.0,
            }.items()
        ), span.name


def test_only_store_errors_and_losses_are_errors(
    client: holdfast.Client, telemetry: Telemetry, faulty_url: str, faults: Faults
) -> None:
    telemetry.instrument(client)
    with holdfast.Client(faulty_url) as other, other.lock("a"):
        assert client.lock("a").acquire(timeout=0.01) is None
    faults.plan("try_acquire", DOWN, OK)
    with pytest.raises(holdfast.BackendUnavailable):
        client.lock("a").acquire()
    lease = client.lock("b", ttl=0.1, renew=False).acquire()
    eventually(lambda: len(telemetry.spans("hold b")) == 1)
    assert lease is not None

    timeout, unavailable = telemetry.spans("acquire a")
    (lost,) = telemetry.spans("hold b")
    assert timeout.status.status_code is StatusCode.UNSET
    assert [event.name for event in timeout.events] == ["queued"]
    for span, error in ((unavailable, "unavailable"), (lost, "expired")):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == error
    assert telemetry.total("holdfast.lock.acquire.duration", error_type="unavailable") == 1
    assert telemetry.total("holdfast.lock.lost", outcome="expired") == 1


def test_a_forked_child_works_and_ends_no_span_of_its_parent(client: holdfast.Client, telemetry: Telemetry) -> None:
    telemetry.instrument(client)
    lease = client.lock("a").acquire()
    child = os.fork()
    if child == 0:
        try:
            with client.lock("b"):
                assert telemetry.total("holdfast.lock.held") == 1
            assert telemetry.total("holdfast.lock.held") == 0
            assert [span.name for span in telemetry.spans("hold")] == ["hold b"]
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert telemetry.spans("hold") == []
    assert lease is not None
    lease.release()
    assert [span.name for span in telemetry.spans("hold")] == ["hold a"]


def test_undo_ends_open_spans_and_spans_can_be_left_out(client: holdfast.Client, telemetry: Telemetry) -> None:
    undo = telemetry.instrument(client)
    lease = client.lock("a").acquire()
    undo()
    assert [span.name for span in telemetry.spans()] == ["acquire a", "hold a"]
    telemetry.instrument(client, spans=False)
    assert lease is not None
    lease.release()
    with client.lock("b"):
        pass
    assert len(telemetry.spans()) == 2
    assert telemetry.total("holdfast.lock.acquire.duration", group="b") == 1


# ── a waiter and the trace of its holder ─────────────────────────────────────────────────────────────────────────────


async def test_a_waiter_links_to_the_trace_of_its_holder(lab: Lab, telemetry: Telemetry) -> None:
    holder, waiter = lab.actor(), lab.actor()
    for actor in (holder, waiter):
        telemetry.instrument(actor.client, propagate=True)
    tracer = telemetry.tracers.get_tracer("test")
    request = tracer.start_span("request")

    def acquire_in_request(client: Any) -> Any:
        with trace.use_span(request):
            lock = client.lock("a")
            return lock.acquire() if lab.runtime == "threads" else asyncio.create_task(lock.acquire())

    lease = await holder(acquire_in_request)
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire(timeout=60))
    spans_of_waiter = [*waiter.client._events.subscribers.values()][-1].__self__._acquiring

    async def is_linked() -> bool:
        return any(span.links for span in list(spans_of_waiter.values()))

    await until(is_linked, "the waiter links to the trace of the holder")
    await holder(lambda _: lease.release())
    waiter_lease = await waiting
    await waiter(lambda _: waiter_lease.release())
    attempts = [span for span in telemetry.exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]
    (link,) = [link for span in attempts for link in span.links]
    assert link.context.trace_id == request.get_span_context().trace_id
    assert link.attributes is not None
    assert link.attributes["holdfast.fence"] == lease.fence


async def test_without_propagate_no_record_has_a_trace(lab: Lab, telemetry: Telemetry) -> None:
    actor = lab.actor()
    telemetry.instrument(actor.client)
    with telemetry.tracers.get_tracer("test").start_as_current_span("request"):
        lease = await actor(lambda client: client.lock("a").acquire())
    assert (await actor(lambda client: client.inspect("a"))).holders[0].trace == ""
    await actor(lambda _: lease.release())


def test_propagate_needs_spans(client: holdfast.Client, telemetry: Telemetry) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="remove spans=False"):
        telemetry.instrument(client, spans=False, propagate=True)
