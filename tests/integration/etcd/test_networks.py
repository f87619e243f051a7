"""Partitions of a real network, of every kind: a holder reports its loss before another client acquires the lock, two
clients never hold it at the same time, clients that reach a majority continue, and all clients work after the heal.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.etcd.servers import Trio
from tests.support.partitions.networks import BETWEEN_SERVERS, Cut, Network, network
from tests.support.partitions.scenarios import TIMES, Location, run_scenario
from tests.support.server_process import folder_in_memory, running

SERVERS = ("n0", "n1", "n2")


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(*SERVERS, "here", *(how.name for how in Cut)) as made, made.inside_router():
        yield made


@pytest.fixture(scope="module")
def started(net: Network) -> Iterator[Trio]:
    hosts = [net.hosts[name] for name in SERVERS]
    with folder_in_memory() as folder, running(Trio(folder, hosts=hosts)) as trio:
        yield trio


@pytest.fixture(params=TIMES)
def trio(net: Network, started: Trio) -> Trio:
    """Three running members without a partition."""
    net.heal()
    started.heal()
    return started


def test_a_partitioned_client_reports_its_loss_before_the_next_grant(net: Network, trio: Trio) -> None:
    """All kinds of cuts at the same time, each for a different client."""
    servers = [server.host for server in trio.servers]

    def cut() -> None:
        for how in Cut:
            net.cut_off(net.hosts[how.name], servers, how)

    holders = {how.name: Location(net.hosts[how.name], trio.url) for how in Cut}
    here = Location(net.hosts["here"], trio.url)
    run_scenario(holders, majority=here, everywhere=here, cut=cut, heal=net.heal)


@pytest.mark.parametrize("how", BETWEEN_SERVERS)
def test_the_client_of_a_partitioned_leader_reports_its_loss_before_the_next_grant(
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
