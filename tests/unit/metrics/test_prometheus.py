"""Hazard: numbers on a dashboard do not add up, or a gauge never returns to zero."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

import holdfast
from holdfast.metrics import METRICS
from holdfast.prometheus import instrument, render
from tests.support.faulty import DOWN, OK, Faults
from tests.support.pages import blocks
from tests.support.processes import eventually
from tests.support.server_process import free_ports
from tests.support.telemetry import total


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def client(faulty_url: str) -> Any:
    with holdfast.Client(faulty_url) as client:
        yield client


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_the_program_of_the_page_exports_the_lines_that_the_page_shows(tmp_path: Path) -> None:
    program, output = itertools.islice(blocks("metrics.md"), 2)
    [port] = free_ports(1)
    environment = {**os.environ, "HOLDFAST_URL": f"sqlite://{tmp_path}/locks.db"}
    shown = {line.rpartition(" ")[0] for line in output.code.splitlines()}

    def exported() -> set[str]:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as response:
                return {line.rpartition(" ")[0] for line in response.read().decode().splitlines()}
        except OSError:  # it has not started yet
            return set()

    assert len(shown) == 5
    with subprocess.Popen([sys.executable, "-c", program.code.replace("9100", str(port))], env=environment) as process:
        try:
            eventually(lambda: shown <= exported())
        finally:
            process.kill()


def test_a_lease_is_counted_and_measured(client: holdfast.Client, registry: CollectorRegistry) -> None:
    instrument(client, registry, name="c")
    with client.lock("order:1", ttl=20) as lease:
        assert value(registry, "holdfast_lock_held", client="c", group="order:*") == 1
        assert (value(registry, "holdfast_lock_oldest_hold_seconds", client="c", group="order:*") or 0) > 0
        lease.renew()
    assert value(registry, "holdfast_lock_held", client="c", group="order:*") == 0
    labels = {"client": "c", "group": "order:*", "primitive": "lock"}
    acquired = {**labels, "outcome": "acquired", "error_type": ""}
    assert value(registry, "holdfast_lock_acquire_duration_seconds_count", **acquired) == 1
    eventually(lambda: total(registry, "holdfast_lock_hold_duration_seconds_count", outcome="released") == 1)
    assert total(registry, "holdfast_lock_renewal_remaining_ratio_count", group="order:*") == 1
    assert 0.5 < total(registry, "holdfast_lock_renewal_remaining_ratio_sum", group="order:*") <= 1
    for operation in ("try_acquire", "renew", "release"):
        count = "holdfast_client_request_duration_seconds_count"
        assert value(registry, count, client="c", operation=operation, error_type="") == 1, operation


def test_store_errors_are_labelled(client: holdfast.Client, registry: CollectorRegistry, faults: Faults) -> None:
    instrument(client, registry, name="c")
    faults.plan("try_acquire", DOWN, OK)
    with pytest.raises(holdfast.BackendUnavailable):
        client.lock("a").acquire()
    lease = client.lock("a").acquire()
    assert lease is not None
    faults.plan("release", DOWN)
    with pytest.raises(holdfast.BackendUnavailable):
        lease.release()
    assert value(registry, "holdfast_client_pending_releases", client="c") == 1
    faults.plan("release", OK)

    eventually(lambda: value(registry, "holdfast_client_pending_releases", client="c") == 0)
    assert total(registry, "holdfast_lock_acquire_duration_seconds_count", error_type="unavailable") == 1
    assert total(registry, "holdfast_lock_hold_duration_seconds_count", outcome="unanswered") == 1
    count = "holdfast_client_request_duration_seconds_count"
    assert total(registry, count, operation="try_acquire", error_type="BackendUnavailable") == 1
    assert total(registry, count, operation="release", error_type="BackendUnavailable") >= 1


def test_losses_elections_and_once_are_counted(client: holdfast.Client, registry: CollectorRegistry) -> None:
    instrument(client, registry, name="c")
    with client.election("leader"):
        assert value(registry, "holdfast_election_leading", client="c", group="leader") == 1
    assert value(registry, "holdfast_election_leading", client="c", group="leader") == 0

    lease = client.lock("a", ttl=0.1, renew=False).acquire()
    eventually(lambda: total(registry, "holdfast_lock_lost_total", group="a", outcome="expired") == 1)
    assert total(registry, "holdfast_lock_hold_duration_seconds_count", group="a", outcome="expired") == 1
    assert lease is not None
    assert value(registry, "holdfast_election_leading", client="c", group="a") is None

    @client.once_per("52w", name="report")
    def report() -> None: ...

    report()
    report()
    for outcome in ("run", "done"):
        assert value(registry, "holdfast_once_calls_total", client="c", group="report", outcome=outcome) == 1
    client.once("charge:7", check="a").run(report)
    client.once("charge:7").run(report)
    with pytest.raises(holdfast.OnceMismatch):
        client.once("charge:7", check="b").run(report)
    for outcome in ("run", "done", "mismatch"):
        assert value(registry, "holdfast_once_calls_total", client="c", group="charge:*", outcome=outcome) == 1


def test_several_clients_use_one_registry(registry: CollectorRegistry, faulty_url: str) -> None:
    with holdfast.Client(faulty_url) as a, holdfast.Client(faulty_url) as b, holdfast.Client("memory://") as c:
        ends = [instrument(a, registry), instrument(b, registry), instrument(c, registry, name="other")]
        held = [each.lock(f"{index}").acquire() for index, each in enumerate((a, b, c))]
        assert value(registry, "holdfast_lock_held", client=faulty_url, group="*") == 2
        assert value(registry, "holdfast_lock_held", client="other", group="*") == 1
        assert total(registry, "holdfast_lock_acquire_duration_seconds_count", client=faulty_url) == 2

        ends[0]()
        assert value(registry, "holdfast_lock_held", client=faulty_url, group="*") == 1
        assert total(registry, "holdfast_lock_acquire_duration_seconds_count", client=faulty_url) == 2
        ends[1]()
        assert total(registry, "holdfast_lock_acquire_duration_seconds_count", client=faulty_url) == 0
        assert value(registry, "holdfast_lock_held", client="other", group="*") == 1
        ends[2]()
        ends[2]()
        assert list(registry.collect()) == []
        assert not c._events.subscribers
        assert not c._events.observers
        assert all(held)


def test_threads_that_begin_with_a_registry_at_the_same_time_share_its_exporter(faulty_url: str) -> None:
    before, start = sys.getswitchinterval(), threading.Barrier(4)
    sys.setswitchinterval(1e-6)

    def add(client: holdfast.Client, registry: CollectorRegistry, name: int) -> Callable[[], None]:
        start.wait()
        return instrument(client, registry, name=f"client {name}")

    try:
        with ThreadPoolExecutor(4) as threads, holdfast.Client(faulty_url) as client:
            for _ in range(50):
                registry = CollectorRegistry()
                ends = list(threads.map(add, [client] * 4, [registry] * 4, range(4)))
                with client.lock("a"):
                    held = [
                        value(registry, "holdfast_lock_held", client=f"client {name}", group="a") for name in range(4)
                    ]
                assert held == [1, 1, 1, 1]
                list(threads.map(lambda end: end(), ends))
                assert list(registry.collect()) == []
    finally:
        sys.setswitchinterval(before)


def test_a_dropped_client_is_not_kept_alive(registry: CollectorRegistry, faulty_url: str) -> None:
    client = holdfast.Client(faulty_url)
    instrument(client, registry, name="c")
    with client.lock("a"):
        pass
    client.close()
    ref = weakref.ref(client)
    del client
    gc.collect()
    assert ref() is None
    assert total(registry, "holdfast_lock_acquire_duration_seconds_count", client="c") == 1
    assert value(registry, "holdfast_client_pending_releases", client="c") is None


@pytest.mark.parametrize("module", ["otel", "prometheus"])
def test_a_missing_package_is_named(module: str) -> None:
    source = str(Path(holdfast.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {source!r}); import holdfast.{module}"
    result = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"pip install 'holdfast[{module}]'" in result.stderr


def test_the_page_is_valid_and_has_each_metric(client: holdfast.Client, registry: CollectorRegistry) -> None:
    instrument(client, registry, name='a"b\n')
    with client.lock('x"\n'):
        pass
    names = {metric.prometheus_name for metric in METRICS}
    body, content_type = render(registry)
    assert content_type.startswith("text/plain")
    parse_text: Any = text_parser.text_string_to_metric_families  # these have no types
    parse_openmetrics: Any = openmetrics_parser.text_string_to_metric_families
    families = {family.name: family for family in parse_text(body.decode())}
    created = {name for name in families if name.endswith("_created")}
    assert families.keys() - created == {name.removesuffix("_total") for name in names}
    assert {sample.labels["group"] for sample in families["holdfast_lock_held"].samples} == {'x"\n'}

    body, content_type = render(registry, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    parsed = {family.name for family in parse_openmetrics(body.decode())}
    assert parsed == families.keys() - created


def test_a_forked_child_begins_with_zero_and_works(client: holdfast.Client, registry: CollectorRegistry) -> None:
    instrument(client, registry, name="c")
    count = "holdfast_lock_acquire_duration_seconds_count"
    lease = client.lock("a").acquire()
    child = os.fork()
    if child == 0:
        try:
            assert total(registry, count) == total(registry, "holdfast_lock_held") == 0
            with client.lock("b"):
                assert total(registry, "holdfast_lock_held") == 1
            assert total(registry, count) == 1
            assert total(registry, "holdfast_client_request_duration_seconds_count", operation="release") == 1
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert total(registry, count) == total(registry, "holdfast_lock_held") == 1
    assert lease is not None
    lease.release()


def test_a_slow_scrape_of_another_thread_does_not_stop_a_client(client: holdfast.Client) -> None:
    registry = CollectorRegistry()
    instrument(client, registry, name="c")
    stop = threading.Event()

    def scrape() -> None:
        while not stop.is_set():
            render(registry)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    for number in range(200):
        with client.lock(f"a{number}"):
            pass
    stop.set()
    scraper.join()
    assert total(registry, "holdfast_lock_acquire_duration_seconds_count") == 200
    assert total(registry, "holdfast_client_request_duration_seconds_count", operation="try_acquire") == 200


def test_other_objects_are_refused(registry: CollectorRegistry) -> None:
    not_a_client: Any = "redis://"
    with pytest.raises(holdfast.ConfigurationError, match="AsyncClient"):
        instrument(not_a_client, registry)
    assert list(registry.collect()) == []
