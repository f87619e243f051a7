"""One etcd server for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid
from urllib.parse import urlencode

from tests.support.etcd.servers import Server, etcdctl
from tests.support.permissions import statements
from tests.support.server_process import until_exit


def fresh_url(**options: str) -> str:
    """The URL of the server with a prefix that no other test uses."""
    return f"{server().url}?{urlencode({'prefix': f'test-{uuid.uuid4().hex}/', **options})}"


def restricted_url(**options: str) -> str:
    """As `fresh_url`, on a server with authentication, for a user with the role of the docs, and no other."""
    address = restricted_server().address
    return f"etcd://app:secret@{address}?{urlencode({'prefix': f'test-{uuid.uuid4().hex}/', **options})}"


@functools.cache
def restricted_server() -> Server:
    """The user `app` may use all keys that begin with `test-`; `root`, with the password `secret`, all keys."""
    server = until_exit(lambda folder: Server(folder, options=["--bcrypt-cost", "4"]))
    for line in (*_ROOT, *statements("etcd", "A role for locks", {"holdfast/": "test-"}), "etcdctl auth enable"):
        run_etcdctl(server, line)
    return server


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
    return until_exit(Server)
