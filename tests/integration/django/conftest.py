"""A real project of Django on PostgreSQL and on MariaDB, its commands and its servers. All end with the test."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.processes import PATIENCE, eventually
from tests.support.server_process import free_ports

ROOT = Path(__file__).parents[3]
PROJECT = Path(__file__).parent / "project"


class Project:
    """A project with a database of its own. `environment` may be changed before a command is started."""

    program = PROJECT / "manage.py"

    def __init__(self, folder: Path, database: Mapping[str, Any]) -> None:
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.integration.django.project.settings",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PROJECT_DATABASES": json.dumps({"default": database}),
            "PROJECT_HOLDFAST": json.dumps({"default": {"DATABASE": "default"}}),
        }
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def use(self, **stores: Any) -> None:
        """Set HOLDFAST."""
        self.environment["PROJECT_HOLDFAST"] = json.dumps(stores)

    def start(self, *words: str, manage: bool = True) -> subprocess.Popen[str]:
        """Start a management command, or another program."""
        command = [sys.executable, str(self.program), *words] if manage else list(words)
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def manage(self, *words: str, status: int = 0) -> str:
        """Run a management command. Return its output."""
        process = self.start(*words)
        output, _ = process.communicate(timeout=PATIENCE * 2)
        assert process.returncode == status, output
        return output

    def python(self, code: str) -> str:
        """Run code inside the project."""
        return self.manage("shell", "--verbosity", "0", "--command", code)

    def serve(self, *words: str, manage: bool = False) -> Site:
        """Start a server. {port} in a word is its port."""
        (port,) = free_ports(1)
        site = Site(port, self.start(*(word.format(port=port) for word in words), manage=manage))
        eventually(site.answers, within=PATIENCE * 2)
        return site

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


class Site:
    """A running server."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port = port
        self.process = process

    def answers(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()[0]
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.send("HEAD", "/")
            return True
        return False

    def get(self, path: str) -> Any:
        """The JSON of a page."""
        status, body = self.send("GET", path)
        assert status == 200, body
        return json.loads(body)

    def send(self, method: str, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def stop(self) -> str:
        """Stop it in order. Return what it printed."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=PATIENCE)
        return output


def _on_postgresql() -> dict[str, Any]:
    name = f"test_{uuid.uuid4().hex}"
    server = postgresql.server()
    server.rows(f"CREATE DATABASE {name}")
    settings = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres"}
    return {**settings, "HOST": "127.0.0.1", "PORT": server.port}


def _on_mariadb() -> dict[str, Any]:
    settings = {"ENGINE": "django.db.backends.mysql", "NAME": mysql.fresh_database(), "USER": "root"}
    # PyMySQL does not know the option ssl_mode, so TLS is off by the options of holdfast.
    return {**settings, "HOST": "127.0.0.1", "PORT": mysql.server().port}


DATABASES: dict[str, Callable[[], dict[str, Any]]] = {"postgresql": _on_postgresql, "mariadb": _on_mariadb}


@pytest.fixture
def open_project(tmp_path: Path) -> Iterator[Callable[[Mapping[str, Any]], Project]]:
    with contextlib.ExitStack() as stack:

        def make(database: Mapping[str, Any]) -> Project:
            made = Project(tmp_path, database)
            stack.callback(made.end)
            return made

        yield make


@pytest.fixture(params=DATABASES)
def project(request: pytest.FixtureRequest, open_project: Callable[[Mapping[str, Any]], Project]) -> Project:
    """A project on each kind of database. Its locks are in the same database."""
    return open_project(DATABASES[request.param]())


@pytest.fixture
def small_project(tmp_path: Path, open_project: Callable[[Mapping[str, Any]], Project]) -> Project:
    """A project on a file of sqlite."""
    return open_project({"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3")})
