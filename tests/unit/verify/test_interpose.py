"""Hazard: a connection of a worker bypasses its proxy, or a library does not see a step of the clock."""

from __future__ import annotations

import subprocess
import sys

_CONNECT = """
import asyncio, socket, threading
from holdfast_lab.verify.interpose import Redirection

listening = socket.create_server(("127.0.0.1", 0))
requested = []

class Hub:
    def proxy(self, host, port):
        requested.append((host, port))
        return listening.getsockname()[1]

Redirection(Hub()).install()
address = ("203.0.113.7", 6379)  # an address that no machine has
{connect}
listening.accept()
print(requested)
"""

_BLOCKING = "socket.create_connection(address)"
_STATUS = "sock = socket.socket(); assert sock.connect_ex(address) == 0"
_ASYNCIO = "asyncio.run(asyncio.wait_for(asyncio.open_connection(*address), 30))"
_IPV6 = "sock = socket.socket(socket.AF_INET6); sock.connect(('2001:db8::7', 6379, 0, 0))"
_LIBPQ = "from psycopg import pq; pq.PGconn.connect_start(b'host=203.0.113.7 port=6379 dbname=any')"


def printed(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_every_method_to_connect_uses_the_proxy_of_the_server() -> None:
    for connect in (_BLOCKING, _STATUS, _ASYNCIO, _LIBPQ):
        assert printed(_CONNECT.format(connect=connect)) == "[('203.0.113.7', 6379)]", connect


def test_a_connection_to_an_address_of_ipv6_goes_to_the_same_proxy() -> None:
    assert printed(_CONNECT.format(connect=_IPV6)) == "[('2001:db8::7', 6379)]"


def test_a_server_has_one_proxy_for_all_connections() -> None:
    twice = f"{_BLOCKING}; {_BLOCKING}"

    assert printed(_CONNECT.format(connect=twice)) == "[('203.0.113.7', 6379)]"


def test_a_unix_socket_is_not_redirected() -> None:
    unix = "ours, theirs = socket.socketpair(); ours.sendall(b'1'); assert theirs.recv(1) == b'1'; " + _BLOCKING

    assert printed(_CONNECT.format(connect=unix)) == "[('203.0.113.7', 6379)]"


def test_a_step_of_the_wall_clock_is_seen_by_both_functions_and_not_by_the_monotonic_clock() -> None:
    code = """
import time
real, steady = time.time(), time.monotonic()
from holdfast_lab.verify.interpose import WallClock
clock = WallClock()
clock.install()
from time import time as imported
clock.offset = 7200.0
print(round(imported() - real, -2), round(time.time_ns() / 1e9 - real, -2), time.monotonic() - steady < 3600)
"""

    assert printed(code) == "7200.0 7200.0 True"
