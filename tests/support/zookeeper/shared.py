"""ZooKeeper servers for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Id

from tests.support.permissions import statements
from tests.support.server_process import for_all_workers, until_exit
from tests.support.zookeeper.servers import Server, kazoo


def fresh_url(**options: str) -> str:
    """The URL of `server` with a root node that no other test uses."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{server().url}/test-{uuid.uuid4().hex}" + (f"?{query}" if query else "")


def restricted_url(**options: str) -> str:
    """A root node on a server for all workers, for a user with the permissions of the docs on it.

    The user cannot create that node.
    """
    parent = f"/test-{uuid.uuid4().hex}"
    with _administrator() as client:
        client.create(parent, acl=[_digest("digest:admin:", "cdrwa")])
        for line in statements("zookeeper", "The parent node", {"/holdfast": f"{parent}/locks"}):
            run_zkcli(client, line)
    query = "&".join(f"{name}={value}" for name, value in {"acl": "creator", **options}.items())
    return f"zookeeper://app:secret@{server().address}{parent}/locks?{query}"


def run_zkcli(client: KazooClient, line: str) -> None:
    """Run a line of the docs."""
    verb, path, *words = line.split()
    if verb == "create":
        client.create(path)
    else:
        assert verb == "setAcl"
        client.set_acls(path, [_acl(entry) for entry in words[0].split(",")])


def set_acls(root: str, user: str) -> None:
    """Give all permissions on the root node and all nodes below it to this user ("digest:app:") and to no other."""
    with _administrator() as client:
        client.add_auth("digest", "app:secret")
        paths = [root]
        for path in paths:
            with contextlib.suppress(NoNodeError):  # the node was deleted by a release
                paths += [f"{path}/{child}" for child in client.get_children(path)]
                client.set_acls(path, [_digest(user, "cdrwa")])


def set_acl(path: str, user: str, permissions: str) -> None:
    """Give these permissions on one node to this user, and all to the administrator."""
    with _administrator() as client:
        client.set_acls(path, [_digest("digest:admin:", "cdrwa"), _digest(user, permissions)])


def _digest(user: str, permissions: str) -> ACL:
    """The entry of this user, with its password in the docs."""
    (line,) = [line for line in statements("zookeeper", "The parent node") if line.startswith("setAcl")]
    (entry,) = [entry for entry in line.split()[2].split(",") if entry.startswith(user)]
    return _acl(f"{entry.rpartition(':')[0]}:{permissions}")


def _acl(entry: str) -> ACL:
    scheme, _, grant = entry.partition(":")
    identity, _, letters = grant.rpartition(":")
    permissions = sum(1 << "rwcda".index(letter) for letter in letters)
    return ACL(permissions, Id(scheme, identity))


@contextlib.contextmanager
def _administrator() -> Iterator[KazooClient]:
    with kazoo(server().address) as client:
        client.add_auth("digest", "admin:secret")
        yield client


@functools.cache
def server() -> Server:
    """A server for all workers."""
    return for_all_workers(Server, "zookeeper")


@functools.cache
def own_server() -> Server:
    """The server of this worker. No other worker sends it requests."""
    return until_exit(Server)
