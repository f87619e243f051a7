"""Hazard: two pods lead at the same time, or none does after the leader has gone.

There is no Kubernetes here: the test starts the processes of the example as the kubelet would, with the command, the
variables, the port and the probes of the manifest. Each pod has a loopback address of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import holdfast
from holdfast.core.names import check_duration
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.shared import fresh_url
from tests.support.server_process import dies_with_thread

EXAMPLE = Path(__file__).parents[3] / "examples" / "kubernetes_leader"
OBJECTS: dict[str, Any] = {item["kind"]: item for item in yaml.safe_load_all((EXAMPLE / "leader.yaml").read_text())}
POD: dict[str, Any] = OBJECTS["Deployment"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
VALUES: dict[str, str] = {item["name"]: item["value"] for item in CONTAINER["env"] if "value" in item}
RELEASE_MAX = 2  # seconds in which a process that ends releases its leases: docs/shutdown.md


class Pod:
    """A process of the program."""

    def __init__(self, name: str, address: str, url: str, log: Path) -> None:
        fields = {"metadata.name": name, "status.podIP": address}
        secret = dict.fromkeys(OBJECTS["Secret"]["stringData"], url)
        sources = {item["name"]: item["valueFrom"] for item in CONTAINER["env"] if "valueFrom" in item}
        values = {name: fields[source["fieldRef"]["fieldPath"]] for name, source in sources.items()}
        command = [{"python": sys.executable}.get(word, word.replace("/app", str(EXAMPLE))) for word in self.command()]
        self.name = name
        self._address = address
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*dies_with_thread(), *command],
                env={"PATH": os.defpath, **secret, **VALUES, **values},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @staticmethod
    def command() -> list[str]:
        words: list[str] = CONTAINER["command"]
        dockerfile = (EXAMPLE / "Dockerfile").read_text()
        assert "COPY leader.py /app/" in dockerfile
        assert f"CMD {json.dumps(words)}" in dockerfile
        return words

    def probe(self, path: str) -> int | None:
        """The status of a probe, or None."""
        [port] = CONTAINER["ports"]
        connection = http.client.HTTPConnection(self._address, port["containerPort"], timeout=PATIENCE)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            return connection.getresponse().status
        return None

    @property
    def is_ready(self) -> bool:
        return self.probe(CONTAINER["readinessProbe"]["httpGet"]["path"]) == 200

    @property
    def leads(self) -> bool:
        return self.probe("/leader") == 200


class Deployment:
    """All pods. They write into one file, so its lines are in the order in which they were written."""

    def __init__(self, folder: Path) -> None:
        network = f"127.{random.randint(1, 250)}.{random.randint(0, 250)}"  # noqa: S311 - the port is the manifest's
        self._log, self._url = folder / "log", fresh_url()
        replicas = OBJECTS["Deployment"]["spec"]["replicas"]
        self.pods = [Pod(f"leader-{n}", f"{network}.{n + 1}", self._url, self._log) for n in range(replicas)]

    def await_leader(self) -> Pod:
        """Wait for a pod that leads and has worked in its term."""
        leaders: list[Pod] = []

        def one_works() -> bool:
            leaders[:] = [pod for pod in self.pods if pod.leads]
            assert len(leaders) < 2, self.output()
            return bool(leaders) and self.steps() != [] and self.steps()[-1][0] == leaders[0].name

        eventually(one_works)
        return leaders[0]

    def steps(self) -> list[tuple[str, int]]:
        """The pod and the term of each step."""
        matches = re.findall(r"(\S+) dispatches, term (\d+)\n", self.output())
        return [(name, int(term)) for name, term in matches]

    def end(self, pod: Pod, number: signal.Signals, within: float) -> int:
        pod.process.send_signal(number)
        self.pods.remove(pod)
        return pod.process.wait(within)

    def holders(self) -> list[int]:
        """The processes that lead according to the store."""
        with holdfast.Client(self._url) as client:
            return [holder.pid for holder in client.inspect("dispatcher").holders]

    def output(self) -> str:
        return self._log.read_text()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    every = list(made.pods)
    try:
        eventually(lambda: all(pod.is_ready for pod in every))
        yield made
    finally:
        for pod in every:
            pod.process.kill()
            pod.process.wait()


def grace() -> float:
    """Seconds from SIGTERM to SIGKILL."""
    return float(POD["terminationGracePeriodSeconds"] - CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"])


def test_another_pod_leads_after_the_leader_was_stopped_and_after_it_was_killed(deployment: Deployment) -> None:
    first = deployment.await_leader()
    status = deployment.end(first, signal.SIGTERM, within=grace())
    has_resigned = first.process.pid not in deployment.holders()
    second = deployment.await_leader()
    deployment.end(second, signal.SIGKILL, within=PATIENCE)
    third = deployment.await_leader()

    assert status == 128 + signal.SIGTERM
    assert has_resigned  # otherwise its lease lasts for almost the whole ttl
    names, terms = zip(*deployment.steps(), strict=True)
    assert list(dict.fromkeys(names)) == [first.name, second.name, third.name]
    assert list(terms) == sorted(terms), "a pod worked after its successor"
    assert len(set(zip(names, terms, strict=True))) == len(set(terms)) == 3, "two pods in one term"
    assert "Traceback" not in deployment.output()


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_manifests_have_the_schema_of_kubernetes(version: str) -> None:
    for item in OBJECTS.values():
        kubernetes_validate.validate(item, version, strict=True)


def test_the_grace_period_covers_a_step_and_the_release() -> None:
    margin, ttl = (check_duration(name, VALUES[name]) for name in ("STOP_MARGIN", "TTL"))

    assert grace() >= margin + RELEASE_MAX
    assert margin < ttl / 2


def test_the_pods_have_no_rights_in_the_cluster() -> None:
    account = OBJECTS["ServiceAccount"]

    assert POD["serviceAccountName"] == account["metadata"]["name"]
    assert POD["automountServiceAccountToken"] is account["automountServiceAccountToken"] is False
    assert not {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & OBJECTS.keys()


def test_names_and_labels_of_the_manifests_agree() -> None:
    template, labels = OBJECTS["Deployment"]["spec"]["template"], {"app": "leader"}
    [port] = CONTAINER["ports"]

    assert template["metadata"]["labels"] == labels
    assert OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert CONTAINER["envFrom"] == [{"secretRef": {"name": OBJECTS["Secret"]["metadata"]["name"]}}]
    assert port["containerPort"] == int(VALUES["PORT"])
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {port["name"]}


def test_the_guide_has_the_code_of_the_example() -> None:
    source = (EXAMPLE / "leader.py").read_text()
    guide = (EXAMPLE.parents[1] / "docs" / "kubernetes.md").read_text()

    assert source[source.index("def main(") : source.index("\n\nif __name__")] in guide
