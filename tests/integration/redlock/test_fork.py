"""Hazard: a forked child inherits the background worker that its parent has for a node that does not answer."""

from __future__ import annotations

from tests.support.processes import WorkerPool
from tests.support.redis.redlock import RedlockServers


def test_a_child_that_closes_its_client_does_not_disturb_its_parent(
    pool: WorkerPool, own_redlock: RedlockServers
) -> None:
    parent = pool.start(own_redlock.url(quarantine="no"), forks=True)
    parent.call("acquire", lock="one", ttl=30)
    own_redlock.servers[4].kill()
    parent.call("acquire", lock="two", ttl=30)  # now the parent has a background worker for that node
    parent.call("release", lock="two")

    child = parent.fork()
    child.call("acquire", lock="three", ttl=30)
    child.call("close")

    parent.call("renew", lock="one")
    parent.call("release", lock="one")
    parent.release()
    for lock in ("one", "two", "three"):
        assert own_redlock.vote_count(lock) == 0
