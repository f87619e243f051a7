"""The leader of three members is cut off from the other two, with a holder on its side. Runs in a network of its own.

    unshare --net python -m tests.integration.etcd.partitioned FOLDER TIMES

Members run as different users, so that the firewall can tell what each of them sends. Prints, for each of so many
locks, when the holder was told of its loss and when the other side was let in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import holdfast
from holdfast.runtimes import system
from tests.support.etcd.servers import Server, Trio, running

TTL = 3.0
FIRST_USER = 61000  # nobody's


class Divided(Trio):
    """Three members, each run by a user of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for number, server in enumerate(self.servers):
            server.user = FIRST_USER + number

    def cut_off(self, one: Server) -> None:
        """Nothing gets from this member to the others, nor from them to it; clients still reach it."""
        peers = ",".join(str(server._peer) for server in self.servers)
        others = ",".join(str(server.user) for server in self.servers if server is not one)
        drops = [
            f"meta skuid {one.user} tcp dport {{ {peers} }} drop",
            f"meta skuid {one.user} tcp sport {{ {peers} }} drop",
            f"meta skuid {{ {others} }} tcp dport {one._peer} drop",
        ]
        lines = ["table ip cut {", "chain out {", "type filter hook output priority 0;", *drops, "}", "}", ""]
        rules = "\n".join(lines)
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


def main(folder: Path, times: int) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    lost: dict[int, float] = {}
    granted: dict[int, float] = {}

    def wait_for(number: int, client: holdfast.Client) -> None:
        lease = client.lock(f"lock {number}").acquire(timeout=60)
        assert lease is not None
        granted[number] = system.now()

    trio = Divided(folder)
    with running(trio):
        leader = trio.leader()
        others = "etcd://" + ",".join(server.address for server in trio.servers if server is not leader)
        holders = [holdfast.Client(leader.url) for _ in range(times)]
        leases = []
        for number, holder in enumerate(holders):
            on_lost = lambda _, which=number: lost.setdefault(which, system.now())  # noqa: E731
            leases.append(holder.lock(f"lock {number}", ttl=TTL, on_lost=on_lost).acquire(timeout=10))
            time.sleep(TTL / 3 / times)
        waiter = holdfast.Client(others)
        threads = [threading.Thread(target=wait_for, args=(number, waiter), daemon=True) for number in range(times)]
        for thread in threads:
            thread.start()
        trio.cut_off(leader)
        for thread in threads:
            thread.join(60)
    sys.stdout.write(json.dumps([[lost.get(number), granted.get(number)] for number in range(times)]) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as name:
        Path(name).chmod(0o755)
        main(Path(name), int(sys.argv[2]))
