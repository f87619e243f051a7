"""Hazard: after the exit of a forked child, something that it or its parent wrote is left on the server."""

from __future__ import annotations

import pytest

from tests.integration.redis.helpers import assert_free_and_clean
from tests.support.processes import WorkerPool
from tests.support.redis.servers import Server


@pytest.mark.parametrize("how", ["closes its client", "ends"])
def test_the_exit_of_a_child_leaves_no_key(how: str, pool: WorkerPool, server: Server) -> None:
    parent = pool.start(server.url, forks=True)
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
    for lock in ("one", "two", "three"):
        assert_free_and_clean(server, lock)
