"""Hazard: a server that does not answer uses up the time of the others, or a sent request counts as refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from holdfast.backends.net.cluster import ServerCluster
from holdfast.backends.net.servers import ServersConfig
from holdfast.errors import AccessDenied, BackendError, BackendUnavailable, HoldfastError, OutcomeUnknown
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url_parts import Node

A, B, C = (Node(host, 1) for host in "abc")
REFUSED = BackendUnavailable(backend="test", problem="refused")
UNANSWERED = OutcomeUnknown(backend="test", problem="no answer")
DENIED = AccessDenied(backend="test", problem="denied")


class StoppedClock(ThreadRuntime):
    """Time does not pass."""

    now = staticmethod(lambda: 100.0)


class Avoided(list[Node]):
    """The servers that a watcher has to avoid."""

    avoid = list.append


class Cluster(ServerCluster[Any, str]):
    """Three servers with planned errors. Records the servers that were tried, with their deadlines."""

    def __init__(self) -> None:
        config = ServersConfig(
            url="test", nodes=(A, B, C), user="", password="", tls=None, connect_timeout=1.0, max_connections=1
        )
        self.watched_elsewhere, self.tried = Avoided(), dict[Node, float]()
        super().__init__(config, StoppedClock(), cast("Any", self.watched_elsewhere))

    async def open(self, node: Node, until: float) -> Any:
        raise NotImplementedError  # the requests of this test use no connection

    def request(self, errors: Mapping[Node, BackendError], *, once: bool = False) -> tuple[Node, bool]:
        self.tried.clear()

        async def work(node: Node, until: float, repeated: bool) -> tuple[Node, bool]:  # noqa: FBT001
            self.tried[node] = until
            if node in errors:
                raise errors[node]
            return node, repeated

        return run_sync(self._try_each(work, 130.0, once=once))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_each_server_has_its_share_of_the_remaining_time(cluster: Cluster) -> None:
    assert cluster.request({A: REFUSED, B: REFUSED}) == (C, False)

    assert cluster.tried == {A: 110.0, B: 115.0, C: 130.0}


def test_the_server_that_answered_last_is_tried_first(cluster: Cluster) -> None:
    cluster.request({A: REFUSED})
    cluster.request({})

    assert list(cluster.tried) == [B]
    assert cluster.watched_elsewhere == [A]


def test_another_server_that_was_avoided_does_not_change_the_order(cluster: Cluster) -> None:
    cluster.avoid(C)
    cluster.request({})

    assert list(cluster.tried) == [A]


def test_a_request_knows_whether_an_earlier_server_may_still_execute_the_request(cluster: Cluster) -> None:
    assert cluster.request({A: UNANSWERED}) == (B, True)


@pytest.mark.parametrize(
    ("errors", "once", "raised", "tried"),
    [
        pytest.param({A: REFUSED, B: REFUSED, C: REFUSED}, False, REFUSED, [A, B, C], id="refused by all"),
        pytest.param(
            {A: REFUSED, B: UNANSWERED, C: REFUSED}, False, UNANSWERED, [A, B, C], id="one may have executed it"
        ),
        pytest.param(
            {A: UNANSWERED, B: DENIED}, False, UNANSWERED, [A, B], id="one may have executed it, the next denies it"
        ),
        pytest.param({A: REFUSED, B: DENIED}, False, DENIED, [A, B], id="denied"),
        pytest.param({A: REFUSED, B: UNANSWERED}, True, UNANSWERED, [A, B], id="sent once"),
    ],
)
def test_a_request_that_may_be_executed_is_never_reported_as_refused(
    cluster: Cluster, errors: Mapping[Node, BackendError], raised: HoldfastError, tried: list[Node], *, once: bool
) -> None:
    with pytest.raises(type(raised)) as error:
        cluster.request(errors, once=once)

    assert error.value is raised
    assert list(cluster.tried) == tried
