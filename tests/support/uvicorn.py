"""uvicorn with two worker processes, and requests to it over HTTP."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes import PATIENCE, eventually
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1


class Response(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Uvicorn(ServerProcess):
    """An application, "module:name" below the root, in two processes that accept connections of one port."""

    def __init__(self, folder: Path, app: str, *, health: str, environment: Mapping[str, str]) -> None:
        """`health` is a path that answers with status 200."""
        super().__init__(folder, environment={**environment, "TEST_APP": app})
        self._health = health

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "uvicorn", "tests.support.uvicorn:load_app", "--factory", "--app-dir", str(ROOT)),
            *("--host", self.host.address, "--port", str(self.port), "--workers", "2", "--no-access-log"),
        ]

    def answers(self) -> bool:
        return self.request(self._health, method="GET").status == 200

    def request(self, path: str, *, method: str = "POST") -> Response:
        """Send a request on a new connection, which any of the processes accepts."""
        with self.sent(path, method=method) as connection:
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, headers, response.read().decode())

    @contextlib.contextmanager
    def sent(self, path: str, *, method: str = "POST") -> Iterator[http.client.HTTPConnection]:
        """A connection with an open request; the end of the block closes it."""
        connection = http.client.HTTPConnection(self.host.address, self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path)
            yield connection

    def wait(self) -> None:
        """Wait until it and its workers have ended without an error."""
        assert self._process is not None
        assert self._process.wait(PATIENCE) == 0, self.log()

    def end(self) -> None:
        """Kill it and its workers, which do not end with it."""
        if self._process is not None:
            group = self._process.pid
            super().end()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
                eventually(lambda: not _exists(group))


def load_app() -> Any:
    """The application, in a worker. The worker is killed with the server, so that a killed test run leaves none."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    module, _, name = os.environ["TEST_APP"].partition(":")
    return getattr(importlib.import_module(module), name)


def _exists(group: int) -> bool:
    """Whether a process of the group runs. A killed one whose parent has ended is a zombie until init reaps it."""
    return any(_runs_in(group, process) for process in Path("/proc").glob("[0-9]*/stat"))


def _runs_in(group: int, process: Path) -> bool:
    try:
        state, _, its_group, *_ = process.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False
    return int(its_group) == group and state not in "ZX"
