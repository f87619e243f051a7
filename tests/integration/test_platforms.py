"""Platforms: systems without the functions of POSIX, gevent, and an asyncio loop without readers.

There is no Windows here. These tests hide the functions that Windows lacks, in a separate process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import holdfast
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper

NO_POSIX = Path(__file__).parents[1] / "support" / "no_posix.py"
SERVERS: dict[str, Callable[[], str]] = {
    "redis": redis.fresh_url,
    "redis-cluster": redis.fresh_cluster_url,
    "redlock": redis.fresh_redlock_url,
    "postgresql": postgresql.fresh_url,
    "mysql": mysql.fresh_url,
    "etcd": etcd.fresh_url,
    "memcached": memcached.fresh_url,
    "zookeeper": zookeeper.fresh_url,
    "memory": lambda: "memory://",
}
REDIS = ("redis", "redis.asyncio", "redis.cluster")
DRIVERS = {
    "redis": REDIS,
    "redis-cluster": REDIS,
    "redlock": REDIS,
    "postgresql": ("psycopg",),
    "mysql": ("pymysql",),
    "zookeeper": ("kazoo.client", "kazoo.handlers.threading"),
}
CONTENDERS = """
import sys, threading, time, holdfast

url, holders, order = sys.argv[1], [], []
client, other = holdfast.Client(url), holdfast.Client(url)

def contend():
    with other.lock('a') as lease:
        assert not holders
        order.append('second')

with client.lock('a', meta={'job': 1}) as lease:
    holders.append(1)
    assert other.lock('a').acquire(timeout=0) is None
    thread = threading.Thread(target=contend)
    thread.start()
    time.sleep(0.2)
    lease.check()
    lease.renew()
    order.append('first')
    holders.clear()
thread.join()
assert order == ['first', 'second']
assert client.inspect('a').holders == ()
other.close()
kept = client.lock('b').acquire()
"""
TASKS = """
import asyncio, sys, holdfast

async def main():
    async with holdfast.AsyncClient(sys.argv[1]) as client, holdfast.AsyncClient(sys.argv[1]) as other:
        async with client.lock('a') as lease:
            assert await other.lock('a').acquire(timeout=0) is None
            waiting = asyncio.create_task(other.lock('a').acquire(timeout=30))
            await asyncio.sleep(0.2)
            await lease.renew()
        assert await waiting
    return True

assert asyncio.run(main())
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"} | environment
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=100, env=environ
    )


def without_posix(*arguments: str, drivers: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    # -P: the folder of the program has a package `celery`
    return python("-P", str(NO_POSIX), ",".join(drivers), *arguments, **environment)


@pytest.mark.parametrize("server", SERVERS)
def test_every_network_backend_works_without_the_functions_of_posix(server: str) -> None:
    done = without_posix(CONTENDERS + TASKS, SERVERS[server](), drivers=DRIVERS.get(server, ()))

    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_only_modules_that_need_posix_fail_to_import_without_it() -> None:
    program = """
    import importlib, pkgutil, holdfast

    for module in pkgutil.walk_packages(holdfast.__path__, 'holdfast.'):
        if module.name != 'holdfast.__main__':
            try:
                importlib.import_module(module.name)
            except (ImportError, AttributeError):
                print(module.name)
            except Exception as error:
                if type(error).__name__ != 'ImproperlyConfigured':  # Django's: it needs the settings of a project
                    raise
    """
    done = without_posix(textwrap.dedent(program), drivers=[name for names in DRIVERS.values() for name in names])

    assert done.returncode == 0, done.stderr
    run = [f"holdfast.cli.run.{module}" for module in ("guard", "linux", "supervisor")]
    top = "holdfast.cli.top.app"  # Textual selects its driver by sys.platform, which is not changed here
    assert done.stdout.split() == [*run, top, "holdfast.fencing.files"]


REFUSED = [
    ("holdfast.lock('a')", "no url is given, and the store that is used then, a file, does not work on "),
    ("holdfast.Client('sqlite:///tmp/locks.db')", "sqlite:// needs FIFOs and file locks, which "),
    ("holdfast.Client('redis+unix:///run/redis.sock')", "redis+unix:// needs Unix sockets, which "),
    ("holdfast.Client('mysql:///a?socket=/run/mysql.sock')", "the option 'socket' needs Unix sockets, which "),
    ("import holdfast.fencing.files", "holdfast.fencing.files needs flock(), which "),
]


def test_features_that_need_posix_are_refused_without_it() -> None:
    """All in one process, which prints their errors."""
    program = """
    import json, holdfast

    for statement in json.loads(STATEMENTS):
        try:
            exec(statement)
        except (holdfast.ConfigurationError, ImportError) as error:
            print(type(error).__name__, error)
    """
    statements = json.dumps([statement for statement, _ in REFUSED])
    done = without_posix(f"STATEMENTS = {statements!r}\n" + textwrap.dedent(program))

    assert done.returncode == 0, done.stderr
    for error, (_, message) in zip(done.stdout.splitlines(), REFUSED, strict=True):
        assert error.startswith(("ConfigurationError ", "ImportError "))
        assert message in error


def test_the_command_line_works_without_posix_except_run() -> None:
    url = redis.fresh_url()
    listed = without_posix("-m", "holdfast", "ls", drivers=REDIS, HOLDFAST_URL=url)
    run = without_posix("-m", "holdfast", "run", "a", "true", HOLDFAST_URL=url)

    assert listed.returncode == 0, listed.stderr
    assert run.returncode == 2
    assert run.stderr.startswith("holdfast: holdfast run needs fork() and process groups, which ")


@pytest.mark.parametrize("server", ["redis", "redlock", "postgresql", "mysql", "etcd", "memcached"])
def test_a_loop_that_cannot_wait_for_sockets_is_refused(server: str) -> None:
    """As the default loop of Windows."""

    class Proactor(asyncio.SelectorEventLoop):
        add_reader = asyncio.AbstractEventLoop.add_reader

    async def acquire() -> None:
        async with holdfast.AsyncClient(SERVERS[server]()) as client:
            await client.lock("a").acquire()

    with (
        asyncio.Runner(loop_factory=Proactor) as runner,
        pytest.raises(holdfast.UsageError, match="this event loop cannot wait for sockets"),
    ):
        runner.run(acquire())


# ── green threads ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server", ["redis", "postgresql"])
def test_greenlets_of_gevent_take_turns_and_do_not_stop_each_other(server: str) -> None:
    """One hub runs all greenlets. A reentrant lock and the check for a self-deadlock distinguish them."""
    pytest.importorskip("gevent")
    program = """
    import gevent

    client, done = holdfast.Client(sys.argv[1]), []

    def work(number):
        for _ in range(5):
            with client.lock('a', reentrant=True) as lease, client.lock('a', reentrant=True):
                lease.check()
                gevent.sleep(0.01)
                done.append((number, lease.fence))

    greenlets = [gevent.spawn(work, number) for number in range(10)]
    gevent.joinall(greenlets, raise_error=True)
    fences = [fence for _, fence in done]
    assert len(set(fences)) == 50 and fences == sorted(fences), done
    """
    patched = "from gevent import monkey; monkey.patch_all()\n"
    done = python("-c", patched + CONTENDERS + textwrap.dedent(program), SERVERS[server]())

    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_eventlet_is_refused_when_it_has_patched_something() -> None:
    pytest.importorskip("eventlet")
    program = """
    import eventlet, holdfast

    holdfast.Client('memory://').close()  # nothing is patched yet
    eventlet.monkey_patch()
    for client in (holdfast.Client, holdfast.AsyncClient):
        try:
            client('memory://')
        except holdfast.ConfigurationError as error:
            print(error)
    """
    done = python("-W", "ignore", "-c", textwrap.dedent(program))

    assert done.returncode == 0, done.stderr
    errors = done.stdout.splitlines()
    assert [error.startswith("eventlet has patched") for error in errors] == [True, True]
