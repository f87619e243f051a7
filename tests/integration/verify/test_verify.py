"""Hazard: `holdfast verify` misses a broken lock, reports a correct lock as broken, or leaves locks held."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.nats import servers as nats
from tests.support.pages import blocks
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import DURABLE
from tests.support.redis.servers import Server
from tests.support.server_process import dies_with_thread, free_ports, running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="stops and kills processes")]

_COMMAND = [sys.executable, "-m", "holdfast", "verify"]


def verify(url: str, *options: str, seconds: int = 4, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    command = [*_COMMAND, url, "--seconds", str(seconds), "--workers", "2", "--ttl", "1", "--seed", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def data_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def statuses(data: dict[str, Any]) -> dict[str, str]:
    return {row["promise"]: row["status"] for row in data["promises"]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(Server(main_binary(), tmp_path / "redis", options=DURABLE)) as server:
        yield server


def test_the_command_of_the_documentation_finds_that_all_promises_hold_on_the_embedded_default(tmp_path: Path) -> None:
    first = next(blocks("verify.md"))
    words = shlex.split(first.code.replace("/var/lib/app", str(tmp_path)).replace("--seconds 60", "--seconds 4"))
    fewer = ("--workers", "2", "--ttl", "1", "--seed", "1", "--only", "pause", "--only", "kill", "--json")

    done = subprocess.run(
        [sys.executable, "-m", *words, *fewer], capture_output=True, text=True, check=False, timeout=110
    )

    assert done.returncode == 0, done.stdout + done.stderr
    data = data_of(done)
    assert statuses(data) | {"fork": "", "wake": ""} == dict.fromkeys(statuses(data), "held") | {"fork": "", "wake": ""}
    assert data["grants"] > 10
    assert data["problems"] == []


def test_all_promises_hold_on_redis_while_connections_fail(server: Server) -> None:
    faults = ("cut", "refuse", "no-replies", "half-open")

    done = verify(server.url, *(word for fault in faults for word in ("--only", fault)), "--json", seconds=6)

    assert done.returncode == 0, done.stdout + done.stderr
    data = data_of(done)
    assert statuses(data)["exclusion"] == statuses(data)["fence"] == statuses(data)["progress"] == "held"
    assert data["guarantees"]["exclusion"] == "durable-authority", "the guarantees of this server"
    assert {fault["name"] for fault in data["faults"]} <= set(faults)
    assert data["faults"], data["not_exercised"]


def test_a_run_on_one_nats_server_is_judged_by_the_guarantees_of_one_server(tmp_path: Path) -> None:
    with running(nats.Server(tmp_path / "nats")) as server:
        done = verify(server.url, "--only", "cut", "--json", seconds=3)

    assert done.returncode == 0, done.stdout + done.stderr
    declared = {row["promise"]: row["declared"] for row in data_of(done)["promises"]}
    assert declared["exclusion"] == "best-effort"
    assert statuses(data_of(done))["exclusion"] == "held"


def test_a_lock_that_does_nothing_is_found_and_pictured(tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    done = verify(
        *("nothing://", "--adapter", "tests.support.broken_locks:Nothing", "--report", str(page), "--only", "kill"),
        seconds=2,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN: exclusion" in done.stdout
    assert "▲ violation" in done.stdout
    assert "--seed 1" in done.stdout
    text = page.read_text()
    assert "<svg" in text
    assert "exclusion: broken" in text


def test_documented_limits_do_not_count_as_broken() -> None:
    adapter = ("--adapter", "tests.support.broken_locks:Documented")
    done = verify("nothing://", *adapter, "--only", "kill", "--json", seconds=1)

    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(data_of(done))["exclusion"] == "documented"


def test_a_holder_that_trusts_an_expired_lease_is_found_by_a_pause(server: Server) -> None:
    adapter = ("--adapter", "tests.support.broken_locks:WithoutDeadline", "--only", "pause", "--json")
    violations: list[dict[str, Any]] = []
    for seed in ("1", "2", "3"):  # a run on a busy machine may find another violation only
        done = verify(server.url, *adapter, "--seed", seed, seconds=6)
        assert done.returncode == 1, done.stdout + done.stderr
        violations = [violation for violation in data_of(done)["violations"] if violation["promise"] == "exclusion"]
        if violations:
            break

    assert violations
    assert {violation["fault"] for violation in violations} == {"pause"}


@pytest.mark.extra  # `test_a_server_that_loses_its_locks_is_found` of test_scenarios.py
def test_a_restart_of_a_redis_without_persistence_is_found(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    binary = shlex.join([str(main_binary().path), "--port", str(port), "--bind", "127.0.0.1", "--save", ""])
    loop = f"while :; do {binary} --appendonly no --dir {tmp_path} >/dev/null; done"
    shell = subprocess.Popen([*dies_with_thread(), "sh", "-c", loop], start_new_session=True)
    try:
        with holdfast.Client(f"redis://127.0.0.1:{port}") as client:
            eventually(lambda: _answers(client))
        restart = f"restart={sys.executable} -ISc {shlex.quote(_SHUTDOWN.format(port=port))}"
        done = verify(f"redis://127.0.0.1:{port}", "--fault", restart, "--only", "restart", "--json", seconds=6)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()

    assert done.returncode == 1, done.stdout + done.stderr
    data = data_of(done)
    assert statuses(data)["exclusion"] == "broken"
    assert statuses(data)["fence"] == statuses(data)["writes"] == "held"
    assert {violation["fault"] for violation in data["violations"]} == {"restart"}


_SHUTDOWN = """\
import contextlib, socket, time
def ask(request):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", {port}), 5) as connection:
        connection.sendall(request)
        return connection.recv(100)
ask(b"SHUTDOWN NOSAVE\\r\\n")
while ask(b"PING\\r\\n") != b"+PONG\\r\\n":
    time.sleep(0.01)
"""


def _answers(client: holdfast.Client) -> bool:
    try:
        client.inspect("any")
    except holdfast.BackendError:
        return False
    return True


def test_a_run_on_names_in_use_is_refused(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    with holdfast.Client(url) as client, client.lock("mine/hot-0"):
        done = verify(url, "--prefix", "mine")

    assert done.returncode == 2
    assert "the lock 'mine/hot-0' is in use: choose another --prefix" in done.stderr


def test_an_interrupt_ends_the_workers_and_frees_the_locks(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    options = ("--seconds", "60", "--workers", "2", "--prefix", "mine")
    run = subprocess.Popen([*_COMMAND, url, *options], stderr=subprocess.DEVNULL)
    with holdfast.Client(url) as client:
        eventually(lambda: any(info.holders for info in client.locks("mine/")))

        run.send_signal(signal.SIGINT)

        assert run.wait(PATIENCE) == 130
        assert client.locks("mine/") == []


def test_a_failed_command_is_reported_as_not_exercised(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"

    done = verify(url, "--fault", "failover=echo no rights >&2; exit 3", "--only", "failover", seconds=3)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise that was exercised held" in done.stdout
    assert "not exercised: failover: its command ended with status 3: no rights" in done.stdout


def test_a_call_that_never_ends_is_found_and_does_not_stop_the_run() -> None:
    done = verify("nothing://", "--adapter", "tests.support.broken_locks:Stuck", "--only", "fork", "--json", seconds=1)

    assert done.returncode == 1, done.stdout + done.stderr
    assert statuses(data_of(done))["outcomes"] == "broken"


def test_an_adapter_that_cannot_be_created_is_an_error_without_a_traceback() -> None:
    done = verify("nothing://", "--adapter", "tests.support.broken_locks:Unusable")

    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.strip() == "holdfast: the adapter failed with OSError: no route to host"
