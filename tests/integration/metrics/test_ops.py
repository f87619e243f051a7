"""Hazard: a dashboard or an alert uses a metric that does not exist, and never shows anything."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

import holdfast
from holdfast.metrics import METRICS, MetricKind
from holdfast.prometheus import instrument
from tests.support.processes import eventually
from tests.support.prometheus import RULES, Server
from tests.support.server_process import free_ports, program, running

DASHBOARD = RULES.parents[1] / "grafana" / "holdfast.json"
SERIES = {
    f"{metric.prometheus_name}{suffix}"
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",))
}
LABELS = {label for metric in METRICS for label in metric.prometheus_labels} | {"le"}


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        [program("promtool", package="prometheus"), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> dict[str, list[str]]:
    """The expressions of each panel, with the variables of Grafana replaced."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return {
        panel["title"]: [_without_variables(target["expr"]) for target in panel["targets"]]
        for panel in dashboard["panels"]
    }


def _without_variables(expression: str) -> str:
    for variable, value in (("$__rate_interval", "1m"), ("$client", ".*"), ("$group", ".*")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def _all_have_data(prometheus: Server, expressions: list[str]) -> bool:
    return all(map(prometheus.query, expressions))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def target(registry: CollectorRegistry) -> Iterator[str]:
    port = free_ports(1)[0]
    server, thread = start_http_server(port, "127.0.0.1", registry)
    yield f"127.0.0.1:{port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_rules_are_valid_and_fire() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", Path(__file__).with_name("rules.test.yml"))


def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    expressions = [expression for of_panel in panels().values() for expression in of_panel]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions)]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


def test_rules_and_dashboard_use_only_metrics_and_labels_that_exist_and_show_all() -> None:
    dashboard = "\n".join(expression for of_panel in panels().values() for expression in of_panel)
    for text in (RULES.read_text(), dashboard):
        assert set(re.findall(r"\bholdfast_[a-z_]+", text)) <= SERIES
        grouped = {label.strip() for labels in re.findall(r" by \(([^)]*)\)", text) for label in labels.split(",")}
        matched = set(re.findall(r"[{,]([a-z_]+)(?:=~|!=|!~|=)\"", text))
        assert grouped | matched <= LABELS
    for metric in METRICS:
        assert metric.prometheus_name in dashboard
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"][1:]
    used = {re.findall(r"holdfast_[a-z_]+", variable["query"]["query"])[0] for variable in variables}
    assert used <= SERIES


def test_a_real_prometheus_scrapes_a_real_client(tmp_path: Path, registry: CollectorRegistry, target: str) -> None:
    with running(Server(tmp_path / "prometheus", target)) as prometheus, holdfast.Client("memory://") as client:
        instrument(client, registry, name="orders")
        for number in range(7):
            with client.lock(f"order:{number}"):
                pass
        lease = client.lock("order:1").acquire(timeout=0)
        assert lease is not None
        with client.election("leader"), client.lock("order:2"):

            @client.once_per("52w", name="report")
            def report() -> None: ...

            report()
            eventually(lambda: prometheus.value('holdfast_lock_held{group="order:*"}') == 2)
            eventually(lambda: prometheus.value("holdfast_once_calls_total") == 1)
            labels = 'client="orders",group="order:*",outcome="acquired"'
            assert prometheus.value(f"sum(holdfast_lock_acquire_duration_seconds_count{{{labels}}})") == 9
            assert prometheus.value('holdfast_election_leading{group="leader"}') == 1
            quiet = ("Leases lost", "Store errors", "Share of the ttl left at renewals, p5")  # these have no data here
            for title, expressions in panels().items():
                if title not in quiet:
                    eventually(partial(_all_have_data, prometheus, expressions))
                else:
                    assert not any(map(prometheus.query, expressions))
        eventually(lambda: prometheus.value('holdfast_lock_held{group="order:*"}') == 1)
        lease.release()
        assert not [alert for alert in prometheus.query("ALERTS") if alert["metric"]["alertstate"] == "firing"]
