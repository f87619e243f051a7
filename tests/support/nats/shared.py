"""NATS servers that tests share: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid
from collections import deque
from urllib.parse import urlencode

from tests.support.nats.servers import Server, Trio
from tests.support.server_process import for_all_workers, until_exit

_RECENT = 8  # buckets: more than one test uses
_buckets: deque[str] = deque()  # of this worker on the cluster


def fresh_url(**options: str) -> str:
    """One server, with a bucket that no other test uses."""
    query = urlencode({"bucket": _fresh_bucket(), "replicas": "1", **options})
    return f"{server().url}?{query}"


def fresh_cluster_url(**options: str) -> str:
    """The same on a cluster of three servers.

    Servers of a cluster exchange messages about each bucket all the time, so this deletes buckets of earlier tests.
    """
    while len(_buckets) >= _RECENT:
        _trio().servers[0].call(f"$JS.API.STREAM.DELETE.KV_{_buckets.popleft()}")
    bucket = _fresh_bucket()
    _buckets.append(bucket)
    return f"{_trio().url}?{urlencode({'bucket': bucket, **options})}"


def _fresh_bucket() -> str:
    return f"test-{uuid.uuid4().hex}"


@functools.cache
def server() -> Server:
    """The server of this worker."""
    return until_exit(Server)


@functools.cache
def _trio() -> Trio:
    return for_all_workers(Trio, "nats")
