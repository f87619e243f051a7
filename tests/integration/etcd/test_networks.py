"""Cut off in a real network, in every manner: who holds a lock knows that it has lost it before anybody else gets it,
nobody ever holds it beside another, who can reach a majority goes on, and all is well when the cut is healed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import shared
from tests.support.etcd.servers import Trio, running
from tests.support.partitions.networks import BETWEEN_SERVERS, Cut, Network, network
from tests.support.partitions.scenarios import TIMES, Location, run_scenario

SERVERS = ("n0", "n1", "n2")


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(*SERVERS, "here", *(how.name for how in Cut)) as made, made.inside_router():
        yield made


@pytest.fixture(scope="module")
def started(net: Network) -> Iterator[Trio]:
    hosts = [net.hosts[name] for name in SERVERS]
    memory = tempfile.TemporaryDirectory(prefix="holdfast-etcd-", dir=shared.in_memory())
    with memory as folder, running(Trio(Path(folder), hosts=hosts)) as trio:
        yield trio


@pytest.fixture(params=TIMES)
def trio(net: Network, started: Trio) -> Trio:
    """All three, and nothing is cut."""
    net.heal()
    started.heal()
    return started


def test_a_client_that_is_cut_off_knows_before_anybody_else_gets_in(net: Network, trio: Trio) -> None:
    """All manners at once, each done to another client."""
    servers = [server.host for server in trio.servers]

    def cut() -> None:
        for how in Cut:
            net.cut_off(net.hosts[how.name], servers, how)

    holders = {how.name: Location(net.hosts[how.name], trio.url) for how in Cut}
    here = Location(net.hosts["here"], trio.url)
    run_scenario(holders, majority=here, everywhere=here, cut=cut, heal=net.heal)


@pytest.mark.parametrize("how", BETWEEN_SERVERS)
def test_the_client_of_a_leader_that_is_cut_off_knows_before_anybody_else_gets_in(
    net: Network, trio: Trio, how: Cut
) -> None:
    leader, followers = trio.leader(), trio.followers()
    majority = "etcd://" + ",".join(server.address for server in followers)
    here = net.hosts["here"]
    run_scenario(
        {how.name: Location(net.hosts[how.name], leader.url)},
        majority=Location(here, majority),
        everywhere=Location(here, trio.url_from(leader)),
        cut=lambda: net.cut_off(leader.host, [server.host for server in followers], how),
        heal=net.heal,
    )
