"""Hazard: a server that all workers of a test run share ends too early, or is started twice, or never ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes import PATIENCE, eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.servers import Server

ROOT = Path(__file__).parents[2]

WORKER = """
import sys
from pathlib import Path

from tests.support.redis.binaries import main_binary
from tests.support.redis.servers import Server
from tests.support.server_process import for_all_workers, join_run

join_run(Path(sys.argv[1]))
print("joined", flush=True)
sys.stdin.readline()
print(for_all_workers(lambda folder: Server(main_binary(), folder), "redis").port, flush=True)
sys.stdin.read()
"""


def start_worker(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(folder)]
    worker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "joined\n"
    return worker


def port_of(worker: subprocess.Popen[str]) -> int:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return int(worker.stdout.readline())


def waits_for_a_lock(worker: subprocess.Popen[str]) -> bool:
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(str(worker.pid) in words for words in waiting)


def test_a_shared_server_is_started_once_and_ends_after_the_last_worker(tmp_path: Path) -> None:
    with start_worker(tmp_path) as first, start_worker(tmp_path) as last:
        server = Server(main_binary(), tmp_path, port=port_of(first))
        assert first.stdin is not None
        first.stdin.close()
        eventually(lambda: waits_for_a_lock(first))  # it has started the server, so it ends after all others

        assert port_of(last) == server.port
        assert server.answers()

        assert last.communicate(timeout=PATIENCE)[0] == ""
        assert (first.wait(PATIENCE), last.returncode) == (0, 0)
        eventually(lambda: not is_up(server))


def is_up(server: Server) -> bool:
    try:
        return server.answers()
    except OSError:
        return False
