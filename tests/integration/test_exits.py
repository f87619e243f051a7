"""The end of a process: leases that no code can use any more are released, and others are not.

Each test runs a real process that ends without a release, with a ttl of 30 s. The next holder acquires within PROMPT.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.forked import ForkedProcess
from tests.conformance.backends import CASES
from tests.support.redis import shared as redis
from tests.support.redis.proxy import Proxy

PROMPT = 15.0  # seconds: far more than a release takes on a busy machine, and half of the ttl of 30 s
PRELUDE = "import sys, holdfast\nurl = sys.argv[1]\n"
NETWORK = [case for case in CASES if case.name != "memory"]


@pytest.fixture(params=NETWORK, ids=lambda case: case.name)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    case: Case = request.param
    return case.fresh_url(tmp_path)


def end_of(program: str, url: str, *, status: int = 0) -> str:
    """Run a program to its end in a forked process, which ends as any other process. Return its output."""
    with tempfile.NamedTemporaryFile("w+", suffix=".py") as script, tempfile.TemporaryFile("w+") as output:
        script.write(PRELUDE + textwrap.dedent(program))
        script.flush()
        with open(os.devnull) as no_input:
            process = ForkedProcess(
                script.name, [url], (no_input.fileno(), output.fileno(), output.fileno()), pass_fds=()
            )
        try:
            returned = process.wait(60)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        printed = output.read()
    assert returned == status, printed
    return printed


def end_of_new_process(program: str, url: str, *, status: int = 0) -> str:
    """The same in a new process: in a forked one, holdfast has registered its exit handler before the program runs."""
    source = PRELUDE + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", source, url], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def is_free(url: str, *names: str) -> bool:
    """The locks (or the lock "a") can be acquired long before the ttl ends."""
    with holdfast.Client(url) as client:
        end = time.monotonic() + PROMPT
        leases = [client.lock(name).acquire(timeout=max(0.0, end - time.monotonic())) for name in names or "a"]
        return None not in leases


def test_an_async_client_that_is_not_closed_releases_its_lease(url: str) -> None:
    printed = end_of(
        """
        import asyncio
        import holdfast.runtimes.exits

        holdfast.runtimes.exits.EXIT_MAX = 30.0  # a busy machine may need more than its two seconds

        async def main():
            global client, lease
            client = holdfast.AsyncClient(url)
            lease = await client.lock('a').acquire()

        asyncio.run(main())
        """,
        url,
    )

    assert not printed
    assert is_free(url)


ENDS = {
    "return": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an error": ("raise RuntimeError", 1),
    "sys.exit in a with": ("with client.lock('b'): sys.exit(3)", 3),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_regular_end_of_a_process_releases(end: str) -> None:
    url, (last_line, status) = redis.fresh_url(), ENDS[end]
    end_of_new_process(
        f"client = holdfast.Client(url); lease = client.lock('a').acquire()\n{last_line}", url, status=status
    )

    assert is_free(url, "a", "b")


def test_a_lease_of_every_primitive_is_released(url: str) -> None:
    printed = end_of(
        """
        client = holdfast.Client(url)
        kept = [client.lock('a').acquire(), client.lock_all(['b', 'c']).acquire(), client.election('d').campaign()]
        reentrant = client.lock('e', reentrant=True)
        kept += [reentrant.acquire(), reentrant.acquire(), client.rwlock('f').write().acquire()]
        try:
            kept += [client.rwlock('g').read().acquire(), client.semaphore('h', 1).acquire()]
        except holdfast.Unsupported:
            pass
        assert all(kept)
        """,
        url,
    )

    assert not printed
    assert is_free(url, *"abcdefgh")


@pytest.mark.parametrize("client", ["holdfast.Client(url)", "holdfast.default_client()"])
def test_a_lease_of_a_daemon_thread_that_runs_is_not_released(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body may still run."""
    url = redis.fresh_url()
    monkeypatch.setenv("HOLDFAST_URL", url)
    end_of(
        f"""
        import threading, time

        def work():
            with client.lock('a'), client.lock('b', max_hold=10.05, stop_margin=10) as lease:
                lease.wait_lost()  # reported 10 s before it is released, for the body to end in time
                client.lock('dropped').acquire()
                ready.set()
                time.sleep(60)

        client, ready = {client}, threading.Event()
        threading.Thread(target=work, daemon=True).start()
        ready.wait()
        lease = client.lock('c').acquire()
        """,
        url,
    )

    with holdfast.Client(url) as other:
        assert other.lock("a").acquire(timeout=0) is None
        assert other.lock("b").acquire(timeout=0) is None
        assert other.lock("dropped").acquire(timeout=0) is None
        with other.lock("c", timeout=PROMPT):
            pass


def test_a_lease_of_a_thread_that_has_finished_is_released() -> None:
    url = redis.fresh_url()
    end_of(
        """
        import threading

        def work():
            kept.append(client.lock('a').acquire())
            client.lock('b').acquire()  # dropped: no variable refers to the lease
            shared.acquire()

        client, kept = holdfast.Client(url), []
        shared = client.lock('c')
        threads = [threading.Thread(target=work)]
        for thread in threads:
            thread.start()
        """,
        url,
    )

    assert is_free(url, "a", "b", "c")


def test_a_dropped_lease_of_the_main_thread_is_released() -> None:
    url = redis.fresh_url()
    end_of("def main(): holdfast.Client(url).lock('a').acquire()\nmain()", url)

    assert is_free(url)


def test_a_dropped_lease_of_a_task_is_released() -> None:
    url = redis.fresh_url()
    end_of(
        """
        import asyncio

        async def main():
            await holdfast.AsyncClient(url).lock('a').acquire()

        asyncio.run(main())
        """,
        url,
    )

    assert is_free(url)


def test_the_name_of_a_server_is_known_at_the_end_of_a_process() -> None:
    """From Python 3.12 on no thread can be started for a look-up then."""
    url = redis.fresh_url()
    printed = end_of(
        """
        import asyncio

        async def main():
            global lease
            lease = await holdfast.AsyncClient(url).lock('a').acquire()

        asyncio.run(main())
        """,
        url.replace("127.0.0.1", "localhost"),
    )

    assert not printed
    assert is_free(url)


def test_no_code_believes_that_it_holds_a_lease_that_is_released() -> None:
    url = redis.fresh_url()
    printed = end_of_new_process(
        """
        import atexit

        def report():  # registered before the client is made, so it runs after the release
            print(lease.held, lease.remaining, client.lock('a').acquire(timeout=0) is not None)
            try:
                lease.check()
            except holdfast.NotHeld as error:
                print(error)

        atexit.register(report)
        client = holdfast.Client(url)
        lease = client.lock('a').acquire()
        """,
        url,
    )

    assert printed.startswith("False 0.0 True\n")
    assert "the process ends" in printed


def test_a_task_of_a_loop_that_still_runs_keeps_its_lease() -> None:
    """The loop runs in a daemon thread, so the body may still run."""
    url = redis.fresh_url()
    end_of(
        """
        import asyncio, threading

        async def main():
            async with holdfast.AsyncClient(url) as client, client.lock('a'):
                ready.set()
                await asyncio.sleep(60)

        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        ready.wait()
        """,
        url,
    )

    with holdfast.Client(url) as other:
        assert other.lock("a").acquire(timeout=0) is None


def test_a_task_of_a_stopped_loop_keeps_its_lease_while_the_thread_of_the_loop_runs() -> None:
    """The thread could run the loop again."""
    url = redis.fresh_url()
    end_of(
        """
        import asyncio, threading, time

        def work():
            loop = asyncio.new_event_loop()
            kept.append(loop.run_until_complete(client.lock('a').acquire()))
            ready.set()
            time.sleep(60)

        client, kept, ready = holdfast.AsyncClient(url), [], threading.Event()
        threading.Thread(target=work, daemon=True).start()
        ready.wait()
        """,
        url,
    )

    with holdfast.Client(url) as other:
        assert other.lock("a").acquire(timeout=0) is None


def test_a_task_of_a_loop_that_the_main_thread_has_stopped_is_released() -> None:
    url = redis.fresh_url()
    end_of(
        """
        import asyncio
        client, loop = holdfast.AsyncClient(url), asyncio.new_event_loop()
        lease = loop.run_until_complete(client.lock('a').acquire())
        """,
        url,
    )

    assert is_free(url)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_releases(method: str, tmp_path: Path) -> None:
    """Up to Python 3.12 a forked child skips `atexit`."""
    url, program = redis.fresh_url(), tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys, holdfast

            client = holdfast.Client(sys.argv[1])

            def work(client):
                global lease
                lease = client.lock('a').acquire()
                client.lock('b').acquire()

            if __name__ == "__main__":
                mine = client.lock('c').acquire()
                child = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(client,))
                child.start()
                child.join()
                assert child.exitcode == 0
                assert mine.held
                other = holdfast.Client(sys.argv[1])  # the child has ended, its parent has not
                assert other.lock('a').acquire(timeout=15) and other.lock('b').acquire(timeout=15)
                assert other.lock('c').acquire(timeout=0) is None
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(program), url, method], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert is_free(url, "a", "c")


def test_a_lease_is_held_until_the_children_of_the_process_have_ended() -> None:
    """Multiprocessing joins children at the end of their parent: they may work under its lease."""
    url = redis.fresh_url()
    printed = end_of_new_process(
        """
        import multiprocessing, time

        def work():
            time.sleep(0.5)
            print(bool(holdfast.Client(url).inspect('a').holders))

        lease = holdfast.Client(url).lock('a').acquire()
        multiprocessing.get_context('fork').Process(target=work).start()
        """,
        url,
    )

    assert printed == "True\n"
    assert is_free(url)


def test_the_end_of_a_process_does_not_wait_for_a_server_that_is_silent() -> None:
    answers = redis.fresh_url()
    program = """
        clients = [holdfast.Client(store) for store in (url, sys.argv[2], url)]
        leases = [client.lock('a' + str(number)).acquire() for number, client in enumerate(clients)]
        print("ready", flush=True)
        input()
        """
    with Proxy(urlsplit(answers).port or 0) as proxy:
        source = PRELUDE + textwrap.dedent(program)
        process = subprocess.Popen(
            [sys.executable, "-c", source, proxy.url, answers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        proxy.lose_requests()
        started = time.monotonic()
        _, printed = process.communicate("\n", timeout=60)

    assert process.returncode == 0, printed
    assert time.monotonic() - started < PROMPT
    assert printed.count("were not released at exit: they expire with their ttl") == 2
    assert is_free(answers, "a1")
