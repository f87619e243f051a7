"""Hazard: after the exit of a forked child, something that it or its parent wrote is left on the server."""

from __future__ import annotations

import pytest

from tests.support.etcd.servers import Server
from tests.support.processes import WorkerPool, eventually


@pytest.mark.parametrize("how", ["closes its client", "ends"])
def test_the_exit_of_a_child_leaves_no_key(how: str, pool: WorkerPool, server: Server, url: str) -> None:
    parent = pool.start(url, forks=True)
    parent.call("acquire", lock="one", ttl=30)
    child = parent.fork()
    child.call("acquire", lock="two", ttl=30)

    if how == "ends":
        child.call("release", lock="two")
        child.send("end")
        child.receive()
    else:
        child.call("close")

    parent.call("renew", lock="one")
    parent.call("acquire", lock="three")
    parent.call("release", lock="three")
    parent.call("release", lock="one")
    parent.release()
    eventually(lambda: server.keys(url.partition("prefix=")[2].replace("%2F", "/")) == [])
