"""Fifty locks at once: the number of round trips, and two callers that name them in opposite order.

    python examples/many_at_once.py redis://localhost:6379/0 --seconds 30

The first part puts a relay before the server. It counts how often the client sends data after data of the server: each
time is a round trip. In the second part two processes acquire the same locks, one in ascending and the other in
descending order; a possible deadlock would show.
"""

from __future__ import annotations

import argparse
import multiprocessing
import select
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

import holdfast

NAMES = [f"seat:{number:02}" for number in range(50)]


class Relay:
    """Forwards data between clients and a server, and counts round trips."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.round_trips = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            server = socket.create_connection(self._server)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        last = server
        while True:
            for end in select.select([client, server], [], [])[0]:
                data = end.recv(65536)
                if not data:
                    client.close()
                    server.close()
                    return
                self.round_trips += end is client and last is server
                last = end
                other[end].sendall(data)


def count_round_trips(url: str, names: list[str]) -> tuple[int, int]:
    """Return the round trips to acquire all locks, and to release them."""
    address = urlsplit(url)
    relay = Relay(address.hostname or "127.0.0.1", address.port or 0)
    user = f"{address.netloc.rpartition('@')[0]}@" if "@" in address.netloc else ""
    with holdfast.Client(address._replace(netloc=f"{user}127.0.0.1:{relay.port}").geturl()) as client:
        with client.lock_all(["the first contact", "costs more"]):
            pass
        before = relay.round_trips
        with client.lock_all(names):
            acquired = relay.round_trips
        return acquired - before, relay.round_trips - acquired


def work(url: str, names: list[str], seconds: float, counts: multiprocessing.Queue[int]) -> None:
    """Acquire and release all locks repeatedly."""
    ends = time.monotonic() + seconds
    turns = 0
    with holdfast.Client(url) as client:
        while time.monotonic() < ends:
            with client.lock_all(names, timeout=60):
                turns += 1
    counts.put(turns)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Count the round trips of fifty locks at once, and check that they cannot deadlock."
    )
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()

    if urlsplit(arguments.url).port is None:
        print("no port in the URL, so no round trips to count")
    else:
        acquire, release = count_round_trips(arguments.url, NAMES)
        print(f"{len(NAMES)} locks: round trips to take them: {acquire}, to give them back: {release}")

    counts: multiprocessing.Queue[int] = multiprocessing.Queue()
    callers = [
        multiprocessing.Process(target=work, args=(arguments.url, names, arguments.seconds, counts))
        for names in (NAMES, NAMES[::-1])
    ]
    for caller in callers:
        caller.start()
    turns = [counts.get(timeout=arguments.seconds + 60) for _ in callers]
    for caller in callers:
        caller.join()
    print(
        f"two callers, one from the last to the first: {min(turns)} and {max(turns)} turns in {arguments.seconds:g} s"
    )
    return 0 if min(turns) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
