"""Hazard: a client works with a store that was restored from an old copy, and gets fences that were granted before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from holdfast.backends.etcd.port import Answer, ClusterChanged, EtcdPort
from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.messages import put, txn
from holdfast.runtimes.threads import run_sync


class Cluster:
    """Returns answers with the header that the test has set."""

    def __init__(self) -> None:
        self.header: Mapping[str, str] = {}
        self.calls = 0
        self.name_mutex = self.watch = self.unwatch = self.wakeups = self.close = self.abandon = None
        self.before_answer: Callable[[], None] = lambda: None

    def is_at(self, revision: int, term: int = 2, member: str = "1", cluster: str = "7") -> None:
        self.header = {"cluster_id": cluster, "member_id": member, "revision": str(revision), "raft_term": str(term)}

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        self.calls += 1
        header = self.header
        self.before_answer()
        answer = {"header": header, "succeeded": True}
        return Answer({"result": answer} if method == "lease/keepalive" else answer, 0.0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def port(cluster: Cluster) -> CheckedPort:
    return CheckedPort("etcd://here", cast("EtcdPort", cluster))


def send_request(port: CheckedPort, method: str = "kv/txn", *, once: bool = False) -> None:
    run_sync(port.call(method, {}, deadline=0.0, once=once))


def test_a_revision_that_went_back_is_refused(cluster: Cluster, port: CheckedPort) -> None:
    cluster.is_at(18)
    send_request(port, "lease/keepalive")
    cluster.is_at(7)

    with pytest.raises(ClusterChanged, match="revision went back: it is 7, and was 18"):
        send_request(port)
    assert not port.is_same_cluster


def test_a_write_is_refused_when_its_revision_is_not_new(cluster: Cluster, port: CheckedPort) -> None:
    cluster.is_at(18)
    send_request(port)
    send_request(port)
    write = txn([], [put(b"key", b"value", 1)])

    with pytest.raises(ClusterChanged, match="revision went back: it is 18, and was 18"):
        run_sync(port.call("kv/txn", write, deadline=0.0))


def test_a_raft_term_that_went_back_is_refused_when_the_revision_did_not(cluster: Cluster, port: CheckedPort) -> None:
    cluster.is_at(18, term=9)
    send_request(port)
    cluster.is_at(19, term=2)

    with pytest.raises(ClusterChanged, match="raft term went back, from 9 to 2"):
        send_request(port, "lease/keepalive")


def test_another_cluster_is_refused(cluster: Cluster, port: CheckedPort) -> None:
    cluster.is_at(18)
    send_request(port)
    cluster.is_at(19, cluster="8")

    with pytest.raises(ClusterChanged, match="another etcd cluster"):
        send_request(port)


def test_a_client_sends_only_deletes_after_the_cluster_has_changed(cluster: Cluster, port: CheckedPort) -> None:
    cluster.is_at(18)
    send_request(port)
    cluster.is_at(7)
    with pytest.raises(ClusterChanged):
        send_request(port)
    cluster.is_at(30)
    calls = cluster.calls

    with pytest.raises(ClusterChanged):
        send_request(port)
    assert cluster.calls == calls
    with pytest.raises(ClusterChanged):
        send_request(port, "kv/deleterange", once=True)
    assert cluster.calls == calls + 1


def test_a_member_that_lags_behind_may_answer_requests_that_are_not_about_keys(
    cluster: Cluster, port: CheckedPort
) -> None:
    cluster.is_at(18, term=3)
    send_request(port)
    cluster.is_at(15, term=2, member="2")

    send_request(port, "lease/keepalive")

    assert port.is_same_cluster


def test_answers_to_concurrent_requests_may_arrive_in_any_order(cluster: Cluster, port: CheckedPort) -> None:
    cluster.is_at(18, term=2)

    def overtaken() -> None:
        cluster.before_answer = lambda: None
        cluster.is_at(25, term=3)
        send_request(port)

    cluster.before_answer = overtaken
    send_request(port)

    assert port.is_same_cluster
