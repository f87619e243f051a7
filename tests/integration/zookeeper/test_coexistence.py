"""holdfast, Curator and kazoo on the same lock: never two holders at a time, and all of them get turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.support.processes import PATIENCE, eventually, now
from tests.support.server_process import missing
from tests.support.zookeeper.servers import JARS, Server, class_path, java, kazoo

SECONDS = float(os.environ.get("HOLDFAST_CONTENTION_SECONDS", "3"))
CURATOR = ("curator-recipes", "curator-framework", "curator-client", "zookeeper-jute", "guava", "slf4j-api")


class Contention:
    """A file that only the holder of the lock may create: a second create shows two holders."""

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "held"
        self.turns: dict[str, int] = {}
        self.overlaps: list[str] = []
        self._threads: list[threading.Thread] = []
        self._end = 0.0

    def contend(self, name: str, lock: Callable[[], AbstractContextManager[object]]) -> None:
        self._end = self._end or now() + SECONDS
        thread = threading.Thread(target=self._take_turns, args=(name, lock))
        self._threads.append(thread)
        thread.start()

    def await_end(self) -> None:
        for thread in self._threads:
            thread.join(SECONDS + PATIENCE)
        assert self.overlaps == []

    def _take_turns(self, name: str, lock: Callable[[], AbstractContextManager[object]]) -> None:
        while now() < self._end:
            with lock():
                try:
                    os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    self.overlaps.append(name)
                    return
                self.turns[name] = self.turns.get(name, 0) + 1
                time.sleep(0.001)
                self.marker.unlink()


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
        contention.await_end()

    assert len(contention.turns) == 4
    assert min(contention.turns.values()) * 3 > max(contention.turns.values()), "first come, first served"


def test_holdfast_and_curator_take_turns(
    contention: Contention, url: str, server: Server, open_client: OpenClient, tmp_path: Path
) -> None:
    path = f"/{url.rpartition('/')[2]}/a"
    if shutil.which("javac") is None or not (JARS / "curator-recipes.jar").exists():
        missing("no Curator, or no compiler for Java, on this machine: `make servers` installs them")
    source = Path(__file__).parent / "Contender.java"
    command = [java(), "-Xmx64m", "-cp", class_path(*CURATOR), str(source)]
    with subprocess.Popen(
        [*command, server.address, path, str(contention.marker), str(SECONDS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as curator:
        try:
            assert curator.stdout is not None
            assert curator.stdout.readline() == "ready\n"
            for number in range(2):
                client = open_client(url)
                contention.contend(f"holdfast {number}", lambda client=client: client.lock("a"))  # type: ignore[misc]
            contention.await_end()
            output = curator.stdout.read().strip()
        finally:
            curator.kill()

    assert output.isdigit(), output
    contention.turns["curator"] = int(output)
    assert len(contention.turns) == 3
    assert min(contention.turns.values()) * 3 > max(contention.turns.values()), "first come, first served"


def test_a_waiter_is_woken_by_the_release_of_another_program(url: str, server: Server, open_client: OpenClient) -> None:
    client = open_client(url)
    with kazoo(server.address) as peer:
        lock = peer.Lock(f"/{url.rpartition('/')[2]}/a")
        lock.acquire()
        (holder,) = client.inspect("a").holders
        assert (holder.fence, str(holder)) == (0, "another program")
        outcomes: list[tuple[float, holdfast.Lease | None]] = []
        thread = threading.Thread(target=lambda: outcomes.append((now(), client.lock("a").acquire(timeout=PATIENCE))))
        thread.start()
        eventually(lambda: len(client.inspect("a").waiters) == 1)

        lock.release()

        thread.join(PATIENCE)
        lease = outcomes[0][1]
        assert lease is not None
        lease.release()
