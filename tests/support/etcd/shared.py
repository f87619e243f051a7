"""One etcd server for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid
from urllib.parse import urlencode

from tests.support.etcd.servers import Server
from tests.support.server_process import until_exit


def fresh_url(**options: str) -> str:
    """The URL of the server with a prefix that no other test uses."""
    return f"{server().url}?{urlencode({'prefix': f'test-{uuid.uuid4().hex}/', **options})}"


@functools.cache
def server() -> Server:
    return until_exit(Server)
