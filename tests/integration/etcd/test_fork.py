"""Hazard: a forked child that inherits its parent's lock or connections: it releases what is not its own, or mixes its
words and answers with its parent's.
"""

from __future__ import annotations

import sys

import pytest

import holdfast
from tests.integration.etcd.crowds import taken
from tests.support.etcd.servers import Server
from tests.support.processes import Crew, Refused, eventually


@pytest.mark.parametrize("method", ["queue", "key"])
def test_the_child_owns_no_lease_of_its_parent_and_takes_its_own(crew: Crew, url: str, method: str) -> None:
    parent = crew.start(f"{url}&method={method}", forks=True)
    parent.ask("acquire", lock="one", ttl=6)

    child = parent.fork()

    assert child.ask("state", lock="one") | {"at": 0} == {"at": 0, "lost": True, "held": False, "remaining": 0.0}
    with pytest.raises(Refused, match="LockLost"):
        child.ask("release", lock="one")
    assert child.ask("acquire", lock="one", timeout=0)["acquired"] is None
    child.ask("acquire", lock="two", ttl=6)
    parent.ask("renew", lock="one")
    parent.ask("check", lock="one")
    parent.ask("release", lock="one")
    child.ask("release", lock="two")


@pytest.mark.parametrize("how", ["closes its client", "ends"])
def test_a_child_that_goes_does_not_disturb_its_parent(how: str, crew: Crew, server: Server, url: str) -> None:
    parent = crew.start(url, forks=True)
    parent.ask("acquire", lock="one", ttl=30)
    child = parent.fork()
    child.ask("acquire", lock="two", ttl=30)

    if how == "ends":
        child.ask("release", lock="two")
        child.tell("end")
        child.hear()
    else:
        child.ask("close")

    parent.ask("renew", lock="one")
    parent.ask("acquire", lock="three")
    parent.ask("release", lock="three")
    parent.ask("release", lock="one")
    parent.release()
    eventually(lambda: server.keys(url.partition("prefix=")[2].replace("%2F", "/")) == [])


def test_a_child_made_while_its_parent_waits_hears_nothing_of_it(crew: Crew, url: str) -> None:
    with holdfast.Client(url) as holder:
        lease = taken(holder, "one")
        parent = crew.start(url, forks=True)
        parent.ask("acquire_in_background", lock="one")
        eventually(lambda: len(holder.inspect("one").waiters) == 1)

        child = parent.fork()
        child.tell("acquire", lock="one")
        eventually(lambda: len(holder.inspect("one").waiters) == 2)
        lease.release()

        assert parent.ask("background_outcome", timeout=20)["outcome"] == "acquired"
        assert child.is_silent(0.2)
        parent.ask("release", lock="one")
        child.hear()
        child.ask("release", lock="one")


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage's own lock may be taken when the child is made")
def test_a_child_never_hangs_on_what_another_thread_of_its_parent_was_doing(crew: Crew, url: str) -> None:
    parent = crew.start(url)

    outcomes = parent.ask("fork_in_a_crowd", times=20, backoff=10.0)["outcomes"]

    assert outcomes == {"fine": 20}, parent.errors()
