"""Hazard: a forked or spawned child that inherits its parent's lock, connections or votes."""

from __future__ import annotations

import sys

import pytest

from tests.integration.redlock.conftest import OpenClient
from tests.support.processes import Crew, Refused, eventually
from tests.support.redis.councils import Council


def test_the_child_owns_no_lease_of_its_parent_and_takes_its_own(
    crew: Crew, council: Council, open_client: OpenClient
) -> None:
    url = council.url(quarantine="no")
    parent = crew.start(url, forks=True)
    parent.ask("acquire", lock="one", ttl=3)

    child = parent.fork()

    assert child.ask("state", lock="one") | {"at": 0} == {"at": 0, "lost": True, "held": False, "remaining": 0.0}
    with pytest.raises(Refused, match="LockLost"):
        child.ask("release", lock="one")
    assert child.ask("acquire", lock="one", timeout=0)["acquired"] is None
    mine = child.ask("acquire", lock="two", ttl=3)
    assert parent.ask("wait_lost", lock="one", timeout=4)["lost"] is False
    observer = open_client(url)
    assert [holder.fence for holder in observer.inspect("two").holders] == [mine["fence"]]
    assert [holder.pid for holder in observer.inspect("one").holders] == [parent.pid]
    parent.ask("release", lock="one")
    child.ask("release", lock="two")
    eventually(lambda: council.vote_count("one") + council.vote_count("two") == 0)


def test_a_child_that_closes_its_client_does_not_disturb_its_parent(crew: Crew, own_council: Council) -> None:
    parent = crew.start(own_council.url(quarantine="no"), forks=True)
    parent.ask("acquire", lock="one", ttl=30)
    own_council.servers[4].kill()
    parent.ask("acquire", lock="two", ttl=30)  # now the parent has somebody in the background who waits for that node
    parent.ask("release", lock="two")

    child = parent.fork()
    child.ask("acquire", lock="three", ttl=30)
    child.ask("close")

    parent.ask("renew", lock="one")
    parent.ask("release", lock="one")
    parent.release()
    for lock in ("one", "two", "three"):
        assert own_council.vote_count(lock) == 0


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage's own lock may be taken when the child is made")
def test_a_child_never_hangs_on_what_another_thread_of_its_parent_was_doing(crew: Crew, council: Council) -> None:
    parent = crew.start(council.url(quarantine="no"))

    outcomes = parent.ask("fork_in_a_crowd", times=20, backoff=10.0)["outcomes"]

    assert outcomes == {"fine": 20}, parent.errors()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_client_can_be_handed_to_a_child_of_multiprocessing(method: str, crew: Crew, council: Council) -> None:
    parent = crew.start(council.url(quarantine="no"))
    parent.ask("acquire", lock="one")

    child = parent.ask("multiprocess", method=method, lock="two")

    assert child["exitcode"] == 0
    assert child["holders"] == [child["pid"]]
    parent.ask("check", lock="one")
    parent.ask("release", lock="one")
    parent.release()
    assert council.vote_count("two") == 0
