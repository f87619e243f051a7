"""A port that checks every answer, and refuses to work with a cluster that has lost data that this client has seen.

Every answer has a header: the cluster's id, the revision of the data, and the member's raft term. A cluster that is
restored from a snapshot continues from an old revision, so new fences would not be greater than earlier ones. A client
detects that by

    cluster id     it changes, unless the cluster was restored with the same member names, addresses and token
    revision       answers about keys are linearizable: none has a smaller revision than an answer that arrived before
                   its request was sent, and the revision of a write, which is the fence, is greater
    raft term      it grows with every election, and a member reports a lower one only after a restore

A client that detects one of these refuses all further work. A new client has seen nothing, and cannot detect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.backends.etcd.port import Answer, ClusterChanged, EtcdPort, Message

_LINEARIZABLE = "kv/"  # other answers may have the data of a member that lags behind


class CheckedPort:
    """An EtcdPort that checks the header of every answer."""

    def __init__(self, url: str, port: EtcdPort) -> None:
        self._url, self._port = url, port
        self._cluster_id = ""
        # If two threads store a revision at once, the smaller one may stay. Then a check is weaker, but never wrong.
        self._revision = 0
        self._terms: Mapping[str, int] = {}  # the greatest term by member; the mapping is replaced, never changed
        self._changed = ""  # the problem, once one was detected
        self.on_cluster_changed: Callable[[str], None] = lambda _: None  # called once, with the problem
        self.name_mutex, self.watch, self.unwatch = port.name_mutex, port.watch, port.unwatch
        self.wakeups, self.close, self.abandon = port.wakeups, port.close, port.abandon

    @property
    def is_same_cluster(self) -> bool:
        return not self._changed

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        if self._changed and not once:  # a request with `once` only deletes keys, which is harmless
            raise ClusterChanged(self._changed)
        at_least, terms = self._revision, self._terms
        answer = await self._port.call(method, message, deadline=deadline, once=once)
        if method.startswith(_LINEARIZABLE):
            at_least += _has_written(message, answer.message)
        else:
            at_least = 0
        self._check(answer.message, at_least, terms)
        return answer

    def _check(self, message: Message, at_least: int, terms: Mapping[str, int]) -> None:
        header = (message.get("result") or message).get("header") or {}
        cluster_id, member = header.get("cluster_id", ""), header.get("member_id", "")
        revision, term = int(header.get("revision", 0)), int(header.get("raft_term", 0))
        if cluster_id and not self._cluster_id:
            self._cluster_id = cluster_id
        if cluster_id and cluster_id != self._cluster_id:
            self._report_change(f"this is another etcd cluster than before ({cluster_id}, not {self._cluster_id})")
        elif revision < at_least:
            self._report_change(f"the etcd cluster's revision went back: it is {revision}, and was {self._revision}")
        elif term < terms.get(member, 0):
            self._report_change(f"an etcd member's raft term went back, from {terms[member]} to {term}")
        if self._changed:
            raise ClusterChanged(self._changed)
        self._revision = max(self._revision, revision)
        if term > self._terms.get(member, 0):
            self._terms = {**self._terms, member: term}

    def _report_change(self, problem: str) -> None:
        if not self._changed:
            self._changed = (
                f"{self._url}: {problem}: it was restored from a snapshot, or the URL names servers of different "
                "clusters. Revisions, which are the fences, may have gone back: make sure they have not (restore with "
                "--bump-revision), then create a new client"
            )
            self.on_cluster_changed(self._changed)


def _has_written(request: Mapping[str, Any], answer: Message) -> bool:
    """Whether this transaction has put a key, which creates a new revision."""
    executed = request.get("success" if answer.get("succeeded") else "failure", ())
    return any("request_put" in operation for operation in executed)
