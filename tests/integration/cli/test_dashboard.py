"""Hazard: the command serves a network without a token, or does not end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.cli.conftest import CliStore
from tests.support.processes import PATIENCE, Worker

ALL = "0.0.0.0"  # noqa: S104 - all interfaces, for the length of a test


def read_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def get(address: str, path: str, token: str) -> object:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)
    connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return json.loads(body) if response.status == 200 else response.status


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_printed_address_serves_the_locks_of_this_machine_until_a_signal(
    store: CliStore, holder: Worker, end: signal.Signals
) -> None:
    holder.call("hold", lock="a")
    process = store.start("dashboard", "--port", "0")
    address = read_address(process)
    match = re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=([\w-]{32})", address)
    assert match is not None

    locks = get(address, "/api/locks", match[1])
    process.send_signal(end)
    _, errors = process.communicate(timeout=PATIENCE)

    assert isinstance(locks, list)
    assert [lock["lock"] for lock in locks] == ["a"]
    assert process.returncode in (128 + end, -end)
    assert errors == ""


def test_the_token_of_a_file_is_used_and_not_printed_into_a_log(store: CliStore, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-24-characters\n")
    process = store.start("dashboard", "--port", "0", "--host", ALL, "--token-file", str(tmp_path / "token"))
    address = read_address(process)

    answers = [
        get(address.replace(ALL, "127.0.0.1"), "/api/locks", token)
        for token in ("a-token-of-24-characters", "another-token-of-24-char")
    ]
    process.terminate()
    process.communicate(timeout=PATIENCE)

    assert "token" not in address
    assert answers == [[], 401]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--host", ALL), "--token-file"),
        (("--host", "::"), "--token-file"),
        (("--host", "locks.example.com"), "--token-file"),
        (("--token-file", "missing"), "cannot be read"),
        (("--token-file", os.devnull), "16 characters"),
        (("--port", "65536"), "from 0 to 65,535"),
    ],
)
def test_arguments_that_are_unsafe_or_wrong_are_refused(
    store: CliStore, arguments: tuple[str, ...], problem: str
) -> None:
    result = store.run("dashboard", *arguments)

    assert (result.status, result.out) == (2, "")
    assert problem in result.errors
    assert "Traceback" not in result.errors


def test_a_port_that_is_in_use_is_reported(store: CliStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = store.run("dashboard", "--port", str(other.getsockname()[1]))

    assert result.status == 2
    assert "in use" in result.errors


def test_a_missing_store_is_reported(store: CliStore) -> None:
    assert store.run("dashboard", "--port", "0", "--url", f"sqlite://{store.path}.missing").status == 125


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "prometheus_client"])
def test_a_missing_package_is_reported_with_the_command_that_installs_it(
    store: CliStore, tmp_path: Path, package: str
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"raise ModuleNotFoundError('no {package}', name='{package}')\n")

    result = store.run("dashboard", PYTHONPATH=str(tmp_path))

    assert result.status == 2
    assert "pip install 'holdfast[dashboard]'" in result.errors
