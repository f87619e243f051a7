"""Partitions of a real network, of every kind: a holder reports its loss before another client acquires the lock, two
clients never hold it at the same time, clients that reach a majority continue, and all clients work after the heal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.partitions.networks import BETWEEN_SERVERS, Cut, Network, network
from tests.support.partitions.scenarios import TIMES, TTL, Location, run_scenario
from tests.support.server_process import running
from tests.support.zookeeper.ensembles import Ensemble
from tests.support.zookeeper.servers import TICK

SERVERS = ("n1", "n2", "n3")
# Milliseconds for which an election waits for an unreachable member, and the longest pause before it tries again.
QUICK_ELECTIONS = ("-Dzookeeper.cnxTimeout=300", "-Dzookeeper.fastleader.maxNotificationInterval=500")


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(*SERVERS, "here", *(how.name for how in Cut)) as made, made.inside_router():
        yield made


@pytest.fixture(scope="module")
def quick_three(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with started(net, tmp_path_factory.mktemp("quick"), sync_limit=6, init_limit=10) as ensemble:
        yield ensemble


@pytest.fixture(params=TIMES)
def quick(net: Network, quick_three: Ensemble) -> Ensemble:
    """Three running members with short timeouts between them, without a partition."""
    net.heal()
    quick_three.heal()
    return quick_three


@pytest.fixture(scope="module")
def patient_three(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with started(net, tmp_path_factory.mktemp("patient"), sync_limit=int(1.1 * TTL * 1000 / TICK) + 1) as ensemble:
        yield ensemble


@pytest.fixture(params=TIMES)
def patient(net: Network, patient_three: Ensemble) -> Ensemble:
    """Three members. A follower that is cut off from the leader answers longer than its clients' sessions live."""
    net.heal()
    patient_three.heal()
    return patient_three


def started(net: Network, folder: Path, **limits: int) -> contextlib.AbstractContextManager[Ensemble]:
    hosts = [net.hosts[name] for name in SERVERS]
    return running(Ensemble(folder, hosts=hosts, flags=QUICK_ELECTIONS, **limits))


def test_a_partitioned_client_reports_its_loss_before_the_next_grant(net: Network, quick: Ensemble) -> None:
    """All kinds of cuts at the same time, each for a different client."""
    servers = [server.host for server in quick.servers]

    def cut() -> None:
        for how in Cut:
            net.cut_off(net.hosts[how.name], servers, how)

    holders = {how.name: Location(net.hosts[how.name], quick.url(session_timeout=TTL)) for how in Cut}
    here = Location(net.hosts["here"], quick.url())
    run_scenario(holders, majority=here, everywhere=here, cut=cut, heal=net.heal)


@pytest.mark.parametrize("how", BETWEEN_SERVERS)
def test_the_client_of_a_partitioned_leader_reports_its_loss_before_the_next_grant(
    net: Network, quick: Ensemble, how: Cut
) -> None:
    leader, followers = quick.leader, quick.followers
    here = net.hosts["here"]
    run_scenario(
        {how.name: Location(net.hosts[how.name], quick.url(leader, session_timeout=TTL))},
        majority=Location(here, quick.url(*followers)),
        everywhere=Location(here, quick.url(leader, *followers)),
        cut=lambda: net.cut_off(leader.host, [server.host for server in followers], how),
        heal=net.heal,
        # Members vote again for a leader that sends but receives nothing, so ZooKeeper elects no leader until the heal.
        has_quorum=how is not Cut.LOSE_REPLIES,
    )


# A follower whose connections are reset drops its clients at once. A follower that loses replies votes all the time,
# which is costly, and shows the same as a leader that loses replies.
@pytest.mark.parametrize(
    "how",
    [
        Cut.DROP,
        Cut.RESET,
        *(pytest.param(how, marks=pytest.mark.extra) for how in (Cut.LOSE_REQUESTS, Cut.LOSE_REPLIES)),
    ],
)
def test_the_client_of_a_partitioned_follower_reports_its_loss_before_the_next_grant(
    net: Network, patient: Ensemble, how: Cut
) -> None:
    leader, (follower, other) = patient.leader, patient.followers
    here = net.hosts["here"]
    run_scenario(
        {how.name: Location(net.hosts[how.name], patient.url(follower, session_timeout=TTL))},
        majority=Location(here, patient.url(leader, other)),
        everywhere=Location(here, patient.url(follower, leader, other)),
        cut=lambda: net.cut_off(follower.host, [leader.host], how),
        heal=net.heal,
    )
