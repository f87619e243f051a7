"""NATS servers that tests share: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid
from urllib.parse import urlencode

from tests.support.nats.servers import Server, Trio
from tests.support.server_process import for_all_workers, until_exit


def fresh_url(**options: str) -> str:
    """One server, with a bucket that no other test uses."""
    return f"{server().url}?{_fresh({'replicas': '1', **options})}"


def fresh_cluster_url(**options: str) -> str:
    """The same on a cluster of three servers."""
    return f"{_trio().url}?{_fresh(options)}"


def _fresh(options: dict[str, str]) -> str:
    return urlencode({"bucket": f"test-{uuid.uuid4().hex}", **options})


@functools.cache
def server() -> Server:
    """The server of this worker."""
    return until_exit(Server)


@functools.cache
def _trio() -> Trio:
    return for_all_workers(Trio, "nats")
