"""holdfast, Curator and kazoo contend for one lock: there are never two holders at a time, and all get turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.support.processes import PATIENCE, eventually
from tests.support.server_process import missing
from tests.support.zookeeper.servers import JARS, Server, class_path, java, kazoo

TURNS = 12  # of each program
UNFAIR = 10  # times as many turns as another program; on a busy machine a program may miss some turns
CURATOR = ("curator-recipes", "curator-framework", "curator-client", "zookeeper-jute", "guava", "slf4j-api")


class Contention:
    """Each holder of the lock creates a file, which fails for a second holder, and adds its name to another."""

    def __init__(self, folder: Path) -> None:
        self.held_file, self.turns_file, self.stop_file = folder / "held", folder / "turns", folder / "stop"
        self._overlaps: list[str] = []
        self._threads: list[threading.Thread] = []
        self.turns_file.touch()

    def contend(self, name: str, lock: Callable[[], AbstractContextManager[object]]) -> None:
        self._threads.append(threading.Thread(target=self._take_turns, args=(name, lock)))
        self._threads[-1].start()

    def await_turns(self, contenders: int) -> None:
        """Let each contender have TURNS turns, and stop all. Check exclusion and the ratio of turns."""
        try:
            eventually(lambda: self._overlaps != [] or self._least(contenders) >= TURNS, within=2 * PATIENCE)
        finally:
            self.stop_file.touch()
            for thread in self._threads:
                thread.join(PATIENCE)
        assert self._overlaps == []
        turns = self._turns()
        assert max(turns.values()) < UNFAIR * min(turns.values()), turns

    def _turns(self) -> Counter[str]:
        return Counter(self.turns_file.read_text().splitlines())

    def _least(self, contenders: int) -> int:
        turns = self._turns()
        return min(turns.values()) if len(turns) == contenders else 0

    def _take_turns(self, name: str, lock: Callable[[], AbstractContextManager[object]]) -> None:
        while not self.stop_file.exists():
            with lock():
                try:
                    os.close(os.open(self.held_file, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    self._overlaps.append(name)
                    return
                with open(self.turns_file, "a") as file:
                    file.write(f"{name}\n")
                time.sleep(0.001)
                self.held_file.unlink()


@pytest.fixture
def contention(tmp_path: Path) -> Contention:
    return Contention(tmp_path)


@pytest.mark.parametrize("layout", ["kazoo", "curator"])
def test_holdfast_and_kazoo_take_turns(
    contention: Contention, url: str, server: Server, open_client: OpenClient, layout: str
) -> None:
    patterns = ["-lock-"] if layout == "curator" else []
    path = f"/{url.rpartition('/')[2]}/a"
    clients = [open_client(f"{url}?layout={layout}") for _ in range(2)]
    with kazoo(server.address) as first, kazoo(server.address) as second:
        for number, client in enumerate(clients):
            contention.contend(f"holdfast {number}", lambda client=client: client.lock("a"))  # type: ignore[misc]
        for number, peer in enumerate((first, second)):
            lock = peer.Lock(path, extra_lock_patterns=patterns)
            contention.contend(f"kazoo {number}", lambda lock=lock: lock)  # type: ignore[misc]
        contention.await_turns(4)


def test_holdfast_and_curator_take_turns(
    contention: Contention, url: str, server: Server, open_client: OpenClient
) -> None:
    path = f"/{url.rpartition('/')[2]}/a"
    if shutil.which("javac") is None or not (JARS / "curator-recipes.jar").exists():
        missing("no Curator, or no compiler for Java, on this machine: `make servers` installs them")
    source = Path(__file__).parent / "Contender.java"
    flags = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # in so short a run, compilation is most of the work
    command = [java(), "-Xmx64m", *flags, "-cp", class_path(*CURATOR), str(source), server.address, path]
    files = [str(file) for file in (contention.held_file, contention.turns_file, contention.stop_file)]
    with subprocess.Popen([*command, *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as curator:
        try:
            for number in range(2):
                client = open_client(url)
                contention.contend(f"holdfast {number}", lambda client=client: client.lock("a"))  # type: ignore[misc]
            eventually(lambda: "curator" in contention.turns_file.read_text(), within=2 * PATIENCE)
            contention.turns_file.write_text("")  # turns before the start of Java do not count
            contention.await_turns(3)
            output, _ = curator.communicate(timeout=PATIENCE)
        finally:
            contention.stop_file.touch()
            curator.kill()

    assert output == ""


def test_a_waiter_is_woken_by_the_release_of_another_program(url: str, server: Server, open_client: OpenClient) -> None:
    client = open_client(url)
    with kazoo(server.address) as peer:
        lock = peer.Lock(f"/{url.rpartition('/')[2]}/a")
        lock.acquire()
        (holder,) = client.inspect("a").holders
        assert (holder.fence, str(holder)) == (0, "another program")
        leases: list[holdfast.Lease | None] = []
        thread = threading.Thread(target=lambda: leases.append(client.lock("a").acquire(timeout=PATIENCE)))
        thread.start()
        eventually(lambda: len(client.inspect("a").waiters) == 1)

        lock.release()

        thread.join(PATIENCE)
        (lease,) = leases
        assert lease is not None
        lease.release()
