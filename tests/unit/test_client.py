"""The client itself: the default store, pickling, closing, and the loops and threads that use it."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import stat
import subprocess
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import default as module
from holdfast.backends.memory.port import stores
from holdfast.backends.redis.config import config_of
from holdfast.core import leases
from holdfast.runtimes import exits, threads
from holdfast.testing import World
from holdfast.url import parse
from holdfast_lab.conformance.lab import Lab


@pytest.fixture
def fresh_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(module._clients, "made", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_the_default_store_is_a_file_private_to_the_user(fresh_default: Path) -> None:
    with holdfast.lock("report") as lease:
        assert lease.fence > 0
        assert holdfast.default_client().url == f"sqlite://{fresh_default}/holdfast/locks.db"
    holdfast.default_client().close()

    folder = fresh_default / "holdfast"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "locks.db").is_file()


def test_the_default_client_is_made_once_and_again_after_closing(fresh_default: Path) -> None:
    first = holdfast.default_client()
    assert holdfast.default_client() is first
    first.close()

    second = holdfast.default_client()

    assert second is not first
    second.close()


def test_the_environment_names_the_default_store(fresh_default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "memory://from-the-environment")

    with holdfast.semaphore("permits", 2), holdfast.rwlock("table").read():
        assert holdfast.default_client().url == "memory://from-the-environment"
    holdfast.default_client().close()


def test_a_program_that_ends_releases_the_leases_of_the_default_client(tmp_path: Path) -> None:
    code = "import holdfast; lease = holdfast.lock('a').acquire()"
    url = f"sqlite://{tmp_path}/locks.db"
    environment = {**os.environ, "HOLDFAST_URL": url, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])}

    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment)

    with holdfast.Client(url) as client:
        assert client.locks() == []
        with client.lock("a", timeout=0):
            pass


@pytest.mark.parametrize("make", [holdfast.Client, holdfast.AsyncClient])
def test_a_client_pickles_as_its_url(make: type[holdfast.Client]) -> None:
    client = make("memory://user:pw@x", ttl=7)

    copy = pickle.loads(pickle.dumps(client))

    assert type(copy) is make
    assert (copy._url, copy._ttl) == ("memory://user:pw@x", 7)


def test_a_lease_refuses_to_be_pickled() -> None:
    with holdfast.Client("memory://pickle") as client:
        lease = client.lock("a").acquire()

        with pytest.raises(TypeError, match="send its fence"):
            pickle.dumps(lease)


def test_every_duration_of_the_api_may_be_text_or_a_timedelta() -> None:
    client = holdfast.Client("memory://", ttl="1m")
    lock = client.lock("a", timeout="1s", max_hold="1h", stop_margin="500ms", lock_delay=timedelta(seconds=2))

    with lock as lease:
        busy = client.lock("a").acquire(timeout="10ms")
        lost = lease.wait_lost(timeout=timedelta(milliseconds=10))
        leaders = list(client.election("a").observe(every="10ms", timeout="20ms"))

    assert (client.lock("a")._spec.ttl, client.lock("a", ttl=timedelta(hours=1))._spec.ttl) == (60.0, 3600.0)
    assert (lock._timeout, lock._spec.max_hold, lock._spec.stop_margin, lock._spec.lock_delay) == (1.0, 3600.0, 0.5, 2)
    assert (busy, lost, len(leaders)) == (None, False, 1)
    client.close()


def test_an_option_of_a_store_may_be_a_duration() -> None:
    address = parse("redis://cache", {"connect_timeout": timedelta(milliseconds=500), "io_timeout": "1m"})

    config = config_of(address, is_asyncio=False)

    assert (config.connect_timeout, config.io_timeout) == (0.5, 60.0)


def test_closing_twice_does_nothing() -> None:
    client = holdfast.Client("memory://")
    client.close()
    client.close()

    with pytest.raises(holdfast.UsageError, match="closed"):
        client.lock("a").acquire(timeout=0)


def test_closing_ends_the_threads_of_a_client(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    client = holdfast.Client(f"sqlite://{tmp_path}/locks.db")
    held = client.lock("a").acquire()
    assert held is not None
    waiting = threading.Thread(target=lambda: client.lock("a").acquire(timeout=0.05))
    waiting.start()
    waiting.join()

    client.close()

    assert set(threading.enumerate()) == before


def test_a_wait_that_begins_while_its_client_closes_subscribes_to_nothing(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    with holdfast.Client(url) as other, other.lock("a"):
        client = holdfast.Client(url)
        assert client.lock("a").acquire(timeout=0) is None
        (other_session,) = {*os.listdir(f"{tmp_path}/locks.db-sessions")} - {_session_of(client)}
        port = _port_of(client)
        client.close()
        before = os.listdir("/proc/self/fd")

        port.subscribe("n", [other_session])

        assert os.listdir("/proc/self/fd") == before


def _port_of(client: holdfast.Client) -> Any:
    assert client._current is not None
    backend: Any = client._current.backend
    return backend._port


def _session_of(client: holdfast.Client) -> str:
    name: str = _port_of(client)._file.session.name
    return name


async def test_an_async_client_belongs_to_the_loop_that_first_used_it() -> None:
    client = holdfast.AsyncClient("memory://")
    async with client.lock("a"):
        pass

    lease = await client.lock("b").acquire()
    assert lease is not None

    def use_on_another_loop() -> None:
        for work in (_acquire(client), lease.release(), lease.renew(), lease.wait_lost(1)):
            with pytest.raises(holdfast.UsageError, match="another event loop"):
                asyncio.run(work)

    await asyncio.to_thread(use_on_another_loop)
    await lease.release()
    await client.close()


async def _acquire(client: holdfast.AsyncClient) -> None:
    await client.lock("a").acquire()


def test_an_async_client_can_be_made_before_its_loop_runs(tmp_path: Path) -> None:
    client = holdfast.AsyncClient(f"sqlite://{tmp_path}/locks.db")

    async def main() -> int:
        async with client, client.lock("a") as lease:
            return lease.fence

    assert asyncio.run(main()) > 0


async def test_a_sync_lock_inside_a_running_loop_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_warned_inside_loop", False)
    with holdfast.Client("memory://inside") as client:
        with pytest.warns(RuntimeWarning, match="AsyncClient") as caught, client.lock("a"):
            pass
        assert caught[0].filename == __file__

        with warnings.catch_warnings(), client.lock("a"):
            warnings.simplefilter("error")


def test_threads_that_use_a_client_first_in_a_forked_child_share_one_engine() -> None:
    """Two engines would not know each other's leases: a reentrant lock would wait for itself."""
    client = holdfast.Client("memory://fork")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, str(_engines_of(client)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        engines = pipe.read()
    os.waitpid(pid, 0)

    assert engines == b"1"
    client.close()


def _engines_of(client: holdfast.Client) -> int:
    """The number of engines when two threads use the client for the first time at the same moment."""
    make, arrivals, engines = client._start, threading.Semaphore(0), []

    def slow() -> Any:
        arrivals.release()
        arrivals.acquire(timeout=0.2)  # the arrival of this thread
        arrivals.acquire(timeout=0.2)  # the arrival of another thread, if there is one
        return make()

    client._start = slow  # type: ignore[method-assign]
    users = [threading.Thread(target=lambda: engines.append(client._engine)) for _ in range(2)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    return len(set(engines))


def test_a_lock_can_be_acquired_while_another_thread_imports_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_warned_inside_loop", False)
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))  # as it is before its first line has run

    with holdfast.Client("memory://importing") as client, client.lock("a", timeout=0):
        pass


def test_fences_are_shared_by_threads_and_tasks_of_one_store() -> None:
    with holdfast.Client("memory://both") as client, client.lock("a") as lease:

        async def contend() -> holdfast.AsyncLease | None:
            async with holdfast.AsyncClient("memory://both") as other:
                return await other.lock("a").acquire(timeout=0.05)

        assert asyncio.run(contend()) is None
        lease.check()


async def test_a_task_is_woken_by_a_thread_and_a_thread_by_a_task(tmp_path: Path) -> None:
    for url in ("memory://across", f"sqlite://{tmp_path}/locks.db"):
        with holdfast.Client(url) as client:
            async with holdfast.AsyncClient(url) as other:
                held = await asyncio.to_thread(client.lock("a").acquire)
                assert held is not None
                waiting = asyncio.create_task(_until_held(other))
                while not (await other.inspect("a")).waiters:
                    await asyncio.sleep(0.001)
                await asyncio.to_thread(held.release)
                task_lease = await waiting
                thread_waits = asyncio.create_task(asyncio.to_thread(client.lock("a").acquire))
                while not (await other.inspect("a")).waiters:
                    await asyncio.sleep(0.001)
                await task_lease.release()
                thread_lease = await thread_waits
                assert thread_lease is not None
                assert thread_lease.fence > task_lease.fence > held.fence
                thread_lease.release()


async def _until_held(client: holdfast.AsyncClient) -> holdfast.AsyncLease:
    lease = await client.lock("a").acquire()
    assert lease is not None
    return lease


def test_a_dropped_lease_is_removed_from_the_store_after_its_end(holdfast_world: World) -> None:
    """In a store where all leases of a session end together, the lease would not end by itself."""
    client = holdfast_world.client()
    lease = client.lock("a", ttl=30).acquire()
    assert lease is not None
    with pytest.warns(ResourceWarning, match="dropped without release"):
        del lease
        gc.collect()

    holdfast_world.clock.advance(29)
    holdfast_world.assert_held("a")
    holdfast_world.clock.advance(2)

    assert not holdfast_world._shared._store.queues  # no ticket is left, not even an expired one


def test_fences_and_registers_of_memory_last_as_long_as_the_process() -> None:
    ran: list[int] = []
    fences: list[int] = []
    for number in range(2):
        with holdfast.Client("memory://lasting") as client:
            client.once_per("1d", name="a")(lambda number=number: ran.append(number))()
            with client.lock("a") as lease:
                fences.append(lease.fence)
        del client, lease
        gc.collect()

    assert fences[1] > fences[0]
    assert ran == [0]


def test_threads_that_open_a_store_of_memory_at_the_same_time_share_it() -> None:
    before, barrier = sys.getswitchinterval(), threading.Barrier(4)
    sys.setswitchinterval(1e-6)

    def store(url: str) -> object:
        barrier.wait()
        return stores.get(url)

    try:
        with ThreadPoolExecutor(4) as threads:
            for number in range(300):
                opened = list(threads.map(store, [f"memory://together{number}"] * 4))
                assert len(set(map(id, opened))) == 1
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("home", ["a#b", "q?1", "p%41", "a@b", "plain"])
def test_the_default_store_is_in_the_home_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # a relative path is ignored

    with holdfast.Client() as client, client.lock("a"):
        pass

    assert (tmp_path / home / ".local/state/holdfast/locks.db").exists()


class Dsn:
    """A URL object of another library, whose str() and repr() show the password."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Dsn({self._text!r})"


@pytest.mark.parametrize(
    "url",
    [
        b"redis://app:s3cret@db/0",
        Dsn("redis://app:s3cret@db/0"),
        "host=db user=app password=s3cret",
        "mysql:app:s3cret",
        "app:s3cret@redis://db",
        "redis://db?s3cret=x@y",
        "redis://app:x?s3cret=y@db",
        ["app:s3cret@db", "redis://db"],
        [Dsn("redis://app:s3cret@db/0")],
        ["app:s3cret@redis://db"],
    ],
    ids=str,
)
def test_no_error_shows_a_password(url: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        holdfast.Client(url)

    assert "s3cret" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_the_acl_of_zookeeper_is_not_shown_with_a_digest() -> None:
    redacted = parse("zookeeper://one?acl=digest:app:s3cret:cdrwa").redacted
    assert redacted == "zookeeper://one?acl=***"
    assert parse("zookeeper://one?acl=open").redacted == "zookeeper://one?acl=open"


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.lock("a"),
        lambda client: client.semaphore("a", 1),
        lambda client: client.rwlock("a").read(),
        lambda client: client.rwlock("a").write(),
        lambda client: client.lock_all(["a", "b"]),
        lambda client: client.election("a"),
    ],
    ids=["lock", "semaphore", "reader", "writer", "several", "election"],
)
async def test_acquire_does_not_wait_with_blocking_false(lab: Lab, make: Callable[[Any], Any]) -> None:
    holder, other = lab.actor(), lab.actor()

    lease = await holder(lambda client: make(client).acquire(blocking=False))
    assert lease.held
    await holder(lambda _: lease.release())
    await holder(lambda client: client.lock("a").acquire())

    assert await other(lambda client: make(client).acquire(blocking=False)) is None
    assert await other(lambda client: make(client).acquire(False)) is None  # noqa: FBT003 - as threading has it
    assert await other(lambda client: make(client).acquire(blocking=True, timeout=0)) is None
    for timeout in (0, 5, None):
        with pytest.raises(ValueError, match="blocking=False does not wait: give either"):
            await other(lambda client, t=timeout: make(client).acquire(blocking=False, timeout=t))
    with pytest.raises(ValueError, match="blocking must be True or False, not 5: timeout= is how long to wait"):
        await other(lambda client: make(client).acquire(5))
    assert (await lab.state("a")).waiters == ()


async def test_an_election_does_not_wait_with_blocking_false(lab: Lab) -> None:
    leader, other = lab.actor(), lab.actor()

    assert await leader(lambda client: client.election("a").campaign(blocking=False))
    assert await other(lambda client: client.election("a").campaign(blocking=False)) is None


def test_a_dropped_client_is_not_kept_for_the_end_of_the_process() -> None:
    async def use() -> None:
        client = holdfast.AsyncClient("memory://")
        async with client.lock("a"):
            pass

    gc.collect()
    before = len(exits._engines)

    holdfast.Client("memory://")
    asyncio.run(use())
    gc.collect()

    assert len(exits._engines) <= before


def test_a_lease_is_freed_without_an_error_when_its_module_has_been_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a process, in Python without the GIL."""
    with holdfast.Client("memory://") as client:
        lease = client.lock("a").acquire()
        assert lease is not None
        lease.release()
        monkeypatch.setattr(leases, "_NOT_RELEASED", None)

        del lease
        gc.collect()
