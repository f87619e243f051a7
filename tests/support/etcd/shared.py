"""etcd servers for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid
from pathlib import Path
from urllib.parse import urlencode

from tests.support.etcd.servers import IDLE, Server, etcdctl
from tests.support.permissions import statements
from tests.support.server_process import for_all_workers, until_exit


def fresh_url(**options: str) -> str:
    """The URL of `server` with a prefix that no other test uses."""
    return f"{server().url}?{_query_with_new_prefix(options)}"


def restricted_url(server: Server | None = None, **options: str) -> str:
    """As `fresh_url`, for a user that has only the role of the docs. By default, on a server for all workers."""
    return f"etcd://app:secret@{(server or _common_server_with_roles()).address}?{_query_with_new_prefix(options)}"


def _query_with_new_prefix(options: dict[str, str]) -> str:
    return urlencode({"prefix": f"test-{uuid.uuid4().hex}/", **options})


@functools.cache
def restricted_server() -> Server:
    """A server of this worker, for tests that change roles.

    The user `app` may use all keys that begin with `test-`; `root`, with the password `secret`, all keys.
    """
    server = until_exit(_with_roles)
    _add_roles(server)
    return server


def _with_roles(folder: Path) -> Server:
    return Server(folder, options=["--bcrypt-cost", "4", *IDLE])


def _add_roles(server: Server) -> None:
    for line in (*_ROOT, *statements("etcd", "A role for locks", {"holdfast/": "test-"}), "etcdctl auth enable"):
        run_etcdctl(server, line)


def run_etcdctl(server: Server, line: str, *, as_root: bool = False) -> None:
    """Run a line of the docs."""
    _, *words = line.split()
    login = ["--user", "root:secret"] if as_root else []
    with etcdctl(server, *login, *words) as process:
        _, problem = process.communicate()
    assert process.returncode == 0, f"{line}: {problem}"


_ROOT = ("etcdctl user add root:secret", "etcdctl role add root", "etcdctl user grant-role root root")


@functools.cache
def server() -> Server:
    """One server for all workers, because an idle server takes processor time too."""
    return for_all_workers(_idle_server, "etcd")


@functools.cache
def own_server() -> Server:
    """The server of this worker. No other worker changes its revision."""
    return until_exit(_idle_server)


def _idle_server(folder: Path) -> Server:
    return Server(folder, options=IDLE)


@functools.cache
def _common_server_with_roles() -> Server:
    return for_all_workers(_with_roles, "etcd-with-roles", prepare=_add_roles)
