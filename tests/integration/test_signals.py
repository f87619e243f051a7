"""SIGTERM to a process inside a `with`: with `exit_on`, and under servers that have handlers of their own.

The ttl is 30 s. The next holder acquires within PROMPT of the moment at which the body ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from tests.support.processes import eventually
from tests.support.redis import shared as redis

PROMPT = 15.0  # seconds: far more than a release takes on a busy machine, and half of the ttl of 30 s


class Running(NamedTuple):
    process: subprocess.Popen[str]
    client: holdfast.Client  # of the test, which is another process
    folder: Path

    def wait_until_held(self) -> None:
        eventually(lambda: self.client.lock("a").locked())

    def wait_until_body(self) -> None:
        """The lock is held a moment before. A signal then would end the acquire, in some servers by `os._exit`."""
        eventually((self.folder / "begun").exists)

    def end(self) -> tuple[int, str]:
        _, printed = self.process.communicate(timeout=60)
        return self.process.returncode, printed

    def workers(self) -> list[int]:
        """The process ids of its children."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(program: str, *command: str) -> Running:
            url = redis.fresh_url()
            source = f"import signal, time, holdfast\nurl, folder = {url!r}, {str(tmp_path)!r}\n"
            (tmp_path / "program.py").write_text(source + textwrap.dedent(program))
            process = subprocess.Popen(
                [sys.executable, *(command or ("program.py",))],
                cwd=tmp_path,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.enter_context(process)
            stack.callback(_kill_group, process.pid)
            return Running(process, stack.enter_context(holdfast.Client(url)), tmp_path)

        yield start


def _kill_group(pid: int) -> None:
    """The process and its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def acquires(client: holdfast.Client) -> bool:
    lease = client.lock("a").acquire(timeout=PROMPT)
    if lease is not None:
        lease.release()
    return lease is not None


def test_a_signal_leaves_the_with_block(start: Start) -> None:
    running = start(
        """
        holdfast.exit_on(signal.SIGTERM)
        with holdfast.Client(url).lock('a'):
            time.sleep(60)
        """
    )
    running.wait_until_held()
    running.process.send_signal(signal.SIGTERM)

    assert acquires(running.client)
    assert running.end() == (143, "")


def test_a_signal_that_interrupts_a_finaliser_leaves_the_with_block(start: Start) -> None:
    """Python ignores an exception in a finaliser, so the first SystemExit has no effect."""
    running = start(
        """
        class Waits:
            def __del__(self):
                open(f"{folder}/begun", "w").close()
                time.sleep(60)

        holdfast.exit_on(signal.SIGTERM)
        with holdfast.Client(url).lock("a") as lease:
            Waits()
            time.sleep(60)
        """
    )
    running.wait_until_body()
    running.process.send_signal(signal.SIGTERM)

    status, printed = running.end()
    assert (status, printed) == (143, "")
    assert acquires(running.client)


def test_a_signal_leaves_the_async_with_block(start: Start) -> None:
    running = start(
        """
        import asyncio

        async def main():
            async with holdfast.AsyncClient(url) as client, client.lock('a'):
                await asyncio.sleep(60)

        holdfast.exit_on(signal.SIGTERM)
        asyncio.run(main())
        """
    )
    running.wait_until_held()
    running.process.send_signal(signal.SIGTERM)

    assert acquires(running.client)
    assert running.end() == (143, "")


def test_a_second_signal_ends_the_process_at_once(start: Start) -> None:
    running = start(
        """
        holdfast.exit_on(signal.SIGTERM)
        with holdfast.Client(url).lock('a'):
            try:
                open(f'{folder}/inside', 'w').close()
                time.sleep(60)
            finally:
                open(f'{folder}/leaving', 'w').close()
                time.sleep(60)
        """
    )
    eventually((running.folder / "inside").exists)
    running.process.send_signal(signal.SIGTERM)
    eventually((running.folder / "leaving").exists)
    running.process.send_signal(signal.SIGTERM)

    assert running.end() == (143, "")
    assert running.client.lock("a").acquire(timeout=0) is None


# ── servers with handlers of their own ───────────────────────────────────────────────────────────────────────────

APP = """
import os

client = holdfast.Client(url)

def app(environ, start_response):
    with client.lock('a'):
        body()
    start_response('200 OK', [])
    return [b'done']
"""
BODY_ENDS_BY_ITSELF = """
def body():
    open(f'{folder}/begun', 'w').close()
    while not os.path.exists(f'{folder}/end'):
        time.sleep(0.01)
"""
BODY_IS_LONG = """
def body():
    open(f'{folder}/begun', 'w').close()
    time.sleep(60)
"""


def gunicorn(start: Start, app: str, *options: str) -> tuple[Running, list[bytes]]:
    """A worker that is inside the `with`, and the list that gets its answer."""
    pytest.importorskip("gunicorn")
    running = start(app, "-m", "gunicorn", "--bind", "unix:socket", "--workers", "1", *options, "program:app")
    answers: list[bytes] = []
    eventually((running.folder / "socket").exists)
    threading.Thread(target=lambda: answers.append(get(running.process.pid)), daemon=True).start()
    running.wait_until_body()
    return running, answers


def get(pid: int) -> bytes:
    """The answer of the server at `socket` in the folder of this process."""
    with socket.socket(socket.AF_UNIX) as connection:
        # The path itself may be too long. The socket exists a moment before its server listens.
        eventually(lambda: connection.connect_ex(f"/proc/{pid}/cwd/socket") == 0)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_a_gunicorn_worker_ends_the_body_and_then_releases(start: Start, worker: str) -> None:
    """Its own handler stays: the request is answered."""
    running, answers = gunicorn(start, APP + BODY_ENDS_BY_ITSELF, "--worker-class", worker)
    os.kill(running.workers()[0], signal.SIGTERM)
    is_busy = running.client.lock("a").acquire(timeout=0.2) is None
    (running.folder / "end").touch()

    assert is_busy
    assert acquires(running.client)
    eventually(lambda: answers != [] and answers[0].endswith(b"done"))


HOOK = """
def post_worker_init(worker):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    holdfast.exit_on(signal.SIGTERM)
"""


def test_a_gunicorn_worker_that_gives_up_its_handler_is_interrupted(start: Start) -> None:
    running, _ = gunicorn(start, APP + BODY_IS_LONG + HOOK, "--config", "program.py")
    os.kill(running.workers()[0], signal.SIGTERM)

    assert acquires(running.client)


def test_a_quick_shutdown_of_gunicorn_interrupts_the_body(start: Start) -> None:
    """SIGQUIT: gunicorn raises SystemExit by itself."""
    running, _ = gunicorn(start, APP + BODY_IS_LONG)
    running.process.send_signal(signal.SIGQUIT)

    assert acquires(running.client)


def test_exit_on_refuses_to_replace_the_handler_of_gunicorn(start: Start) -> None:
    pytest.importorskip("gunicorn")
    running = start("holdfast.exit_on(signal.SIGTERM)", "-m", "gunicorn", "--bind", "unix:socket", "program:app")

    status, printed = running.end()
    assert status != 0
    assert "UsageError: SIGTERM has a handler already (Worker.handle_exit)" in printed


def test_a_uvicorn_server_ends_the_body_and_then_releases(start: Start) -> None:
    pytest.importorskip("uvicorn")
    running = start(
        """
        import asyncio, os

        async def app(scope, receive, send):
            if scope['type'] == 'http':
                async with holdfast.AsyncClient(url) as client, client.lock('a'):
                    while not os.path.exists(f'{folder}/end'):
                        await asyncio.sleep(0.01)
                await send({'type': 'http.response.start', 'status': 200, 'headers': []})
                await send({'type': 'http.response.body', 'body': b'done'})

        if __name__ == '__main__':
            import uvicorn
            holdfast.exit_on(signal.SIGTERM)  # before uvicorn sets its own handler, and puts this one back at the end
            uvicorn.run(app, uds='socket', lifespan='off', log_level='error')
        """
    )
    answers: list[bytes] = []
    eventually((running.folder / "socket").exists)
    threading.Thread(target=lambda: answers.append(get(running.process.pid)), daemon=True).start()
    running.wait_until_held()
    running.process.send_signal(signal.SIGTERM)
    is_busy = running.client.lock("a").acquire(timeout=0.2) is None
    (running.folder / "end").touch()

    assert is_busy
    assert acquires(running.client)
    eventually(lambda: answers != [] and answers[0].endswith(b"done"))
    assert running.end() == (143, "")


CELERY = """
import celery, os

app = celery.Celery(broker='filesystem://', set_as_current=True)
os.makedirs('queue', exist_ok=True)
app.conf.broker_transport_options = {'data_folder_in': 'queue', 'data_folder_out': 'queue', 'control_folder': 'queue'}
app.conf.worker_hijack_root_logger = False
client = holdfast.Client(url)

@app.task
def job():
    with client.lock('a'):
        body()
"""


def celery_worker(start: Start, body: str) -> Running:
    """A worker whose child process is inside the `with`."""
    options = ("--pool", "prefork", "--concurrency", "1", "--without-gossip", "--without-mingle", "--loglevel", "ERROR")
    running = start(CELERY + body, "-m", "celery", "-A", "program", "worker", *options)
    subprocess.run(
        [sys.executable, "-c", "import program; program.job.delay()"], cwd=running.folder, check=True, timeout=60
    )
    running.wait_until_body()
    return running


def test_a_warm_shutdown_of_celery_ends_the_body_and_then_releases(start: Start) -> None:
    running = celery_worker(start, BODY_ENDS_BY_ITSELF)
    running.process.send_signal(signal.SIGTERM)
    is_busy = running.client.lock("a").acquire(timeout=0.2) is None
    (running.folder / "end").touch()

    assert is_busy
    assert acquires(running.client)


def test_a_cold_shutdown_of_celery_interrupts_the_body(start: Start) -> None:
    """Celery sends SIGTERM to the child, which turns it into SystemExit."""
    running = celery_worker(start, BODY_IS_LONG)
    running.process.send_signal(signal.SIGQUIT)

    assert acquires(running.client)
