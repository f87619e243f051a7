"""Run one scenario: its servers in this process, `holdfast verify` in another, faults at the request of the latter."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packages.lab.scenarios.scenario import Deployment, Fault, Scenario
from tests.support.processes import PATIENCE
from tests.support.server_process import dies_with_thread, folder_in_memory

ROOT = Path(__file__).parents[3]  # of the repository, where the command of a fault finds its module
_EXTRA_MAX = 180.0  # seconds that a run may take longer than its load
_POLL = 0.1
Progress = Callable[[str], None]


class RunError(Exception):
    """A scenario did not run to its end."""


class Options(NamedTuple):
    """The options of a run."""

    seconds: float = 120.0
    seed: int = 1
    report: Path | None = None  # a folder for pages with pictures of violations


def run(scenario: Scenario, options: Options, progress: Progress = lambda _text: None) -> dict[str, Any]:
    """Run the scenario on the main thread, because servers end with the thread that started them.

    Returns the JSON of `holdfast verify`, the number of faults, and the load of the machine before and after.

    Raises:
        RunError: `verify` failed, or a fault or its repair did.
    """
    with folder_in_memory() as folder, scenario.deploy(folder) as deployment, _control_socket() as control:
        load = os.getloadavg()[0]
        output = folder / "result.json"
        with open(output, "wb") as out, open(folder / "errors", "wb") as errors:
            command = [*dies_with_thread(), *_command(scenario, deployment, options, control.getsockname())]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, cwd=ROOT)
        try:
            count = _serve(control, deployment, process, options, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)
        try:
            result: dict[str, Any] = json.loads(output.read_text())
        except ValueError as error:
            raise RunError(f"verify failed: {(folder / 'errors').read_text().strip()[-500:]}") from error
        failed = {name: reason for name, reason in result["not_exercised"].items() if name in deployment.faults}
        if failed and not any(fault["name"] in deployment.faults for fault in result["faults"]):
            raise RunError(f"no fault of the servers happened: {failed}")
        return {
            **result,
            "server_faults": count,
            "seconds": options.seconds,
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        }


@contextlib.contextmanager
def _control_socket() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory(prefix="holdfast-scenario-") as folder, socket.socket(socket.AF_UNIX) as control:
        control.bind(f"{folder}/control")
        control.listen()
        control.settimeout(_POLL)
        yield control


def _command(scenario: Scenario, deployment: Deployment, options: Options, control: str) -> list[str]:
    words = [sys.executable, "-m", "holdfast", "verify", deployment.url, "--json"]
    words += ["--seconds", f"{options.seconds:g}", "--seed", str(options.seed), *scenario.options]
    for name in deployment.faults:
        line = shlex.join([sys.executable, "-m", "packages.lab.scenarios.fault", control, name])
        words += ["--fault", f"{name}={line}", "--only", name]
    if options.report is not None:
        words += ["--report", str(options.report / f"{scenario.name}.html")]
    return words


def _serve(
    control: socket.socket,
    deployment: Deployment,
    process: subprocess.Popen[bytes],
    options: Options,
    progress: Progress,
) -> int:
    """Perform the faults that the process requests until it ends. Returns their number."""
    began, count = time.monotonic(), 0
    while process.poll() is None:
        passed = time.monotonic() - began
        if passed > options.seconds + _EXTRA_MAX:
            raise RunError(f"verify did not end within {options.seconds + _EXTRA_MAX:g} s")
        try:
            connection, _ = control.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(PATIENCE)
            name = b"".join(iter(lambda: connection.recv(4096), b"")).decode()  # noqa: B023  (called at once)
            count += 1
            progress(f"{passed:.0f} s of {options.seconds:.0f} s, fault {count}: {name}")
            _perform(deployment.faults[name], connection)
    return count


def _perform(fault: Fault, connection: socket.socket) -> None:
    steps = fault()
    try:
        next(steps)
    except Exception as error:
        connection.sendall(f"{type(error).__name__}: {error}".encode())
        raise
    connection.sendall(b"done")
    connection.close()
    for _ in steps:
        raise AssertionError("a fault yields once")
