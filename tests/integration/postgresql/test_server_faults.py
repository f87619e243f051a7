"""Hazard: a double grant or repeated fence when the server is killed, full, a standby, or has its clock set."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import BackendUnavailable, LockLost
from holdfast.core.tickets import Granted
from holdfast_lab.sim.mutants.base import replaced
from tests.integration.conftest import OpenClient
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.servers import Server, SmallDisk, Standby
from tests.support.processes import eventually
from tests.support.redis.clock import WallClock
from tests.support.server_process import missing, running


def acquired(client: holdfast.Client, name: str, ttl: float = 30.0) -> holdfast.Lease:
    lease = client.lock(name, ttl=ttl).acquire(timeout=15)
    assert lease is not None
    return lease


@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_kill_9_of_the_server_loses_no_lease(own_server: Server, open_client: OpenClient, method: str) -> None:
    url = own_server.url_of("postgres", method=method)
    holder, waiter = open_client(url), open_client(url)
    lease = acquired(holder, method)
    leases: list[holdfast.Lease | None] = []
    thread = threading.Thread(target=lambda: leases.append(waiter.lock(method).acquire(timeout=60)))
    thread.start()
    eventually(lambda: bool(own_server.clients("%pg_advisory_lock%" if method == "advisory" else "LISTEN%")))

    own_server.kill()
    own_server.start()

    lease.renew()
    assert open_client(url).lock(method).acquire(timeout=0) is None
    assert not leases
    lease.release()
    thread.join(70)
    assert leases[0] is not None
    assert leases[0].fence > lease.fence
    leases[0].release()


def test_fences_grow_after_a_crash(own_server: Server, open_client: OpenClient) -> None:
    """A sequence would repeat numbers: those that it has drawn ahead of its log are drawn again."""
    client = open_client(own_server.url)
    fences = []
    for _ in range(3):
        for _ in range(5):
            with client.lock("counted", timeout=20) as lease:
                fences.append(lease.fence)
        own_server.kill()
        own_server.start()

    with client.lock("counted", timeout=20) as lease:
        fences.append(lease.fence)
    assert fences == sorted(set(fences))


def test_locks_work_when_the_server_ends_idle_sessions(folder: Path, open_client: OpenClient) -> None:
    settings = ["idle_session_timeout=300ms", "idle_in_transaction_session_timeout=300ms"]
    with running(Server(folder / "restless", settings=settings)) as server:
        if server.value("SHOW server_version_num") < "140000":
            pytest.skip("this PostgreSQL has no idle_session_timeout")
        client, waiter = open_client(server.url), open_client(server.url)
        lease = acquired(client, "a")
        leases: list[holdfast.Lease | None] = []
        thread = threading.Thread(target=lambda: leases.append(waiter.lock("a").acquire(timeout=60)))
        thread.start()
        eventually(lambda: len(open_client(server.url).inspect("a").waiters) == 1)

        eventually(lambda: "idle-session timeout" in server.log())
        lease.renew()
        lease.release()

        thread.join(70)
        assert leases[0] is not None
        leases[0].release()


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Server]:
    probe = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True, text=True)
    if probe.returncode or os.getuid() != 0:
        missing(f"cannot mount a small disk: {probe.stderr.strip() or 'not root'}")
    with running(SmallDisk(folder / "small", settings=["max_wal_size=32MB", "wal_keep_size=0"])) as server:
        yield server


def test_a_full_disk_is_an_error_and_loses_no_lock(small_disk: Server, open_client: OpenClient) -> None:
    client, other = open_client(small_disk.url), open_client(small_disk.url)
    lease = acquired(client, "held")
    small_disk.rows("CREATE UNLOGGED TABLE filler (x text); ALTER TABLE filler ALTER x SET STORAGE PLAIN")
    for size in (7000, 100):
        with contextlib.suppress(psycopg.errors.DiskFull):
            small_disk.rows(f"INSERT INTO filler SELECT repeat('x', {size}) FROM generate_series(1, 1000000)")  # noqa: S608

    with pytest.raises(BackendUnavailable, match="No space left on device"):
        for number in range(10_000):
            acquired(client, f"{number:0500}").release()
    assert other.lock("held").acquire(timeout=0) is None

    small_disk.rows("DROP TABLE filler")
    lease.renew()
    lease.release()
    with other.lock("held", timeout=0) as after:
        assert after.fence > lease.fence


def test_a_standby_grants_no_locks_before_it_is_promoted(
    own_server: Server, folder: Path, open_client: OpenClient
) -> None:
    lease = acquired(open_client(own_server.url), "followed")
    with running(Standby(folder / "standby", own_server)) as standby:
        client = open_client(standby.url)
        with pytest.raises(BackendUnavailable, match="takes no writes"):
            client.lock("followed").acquire(timeout=0)
        eventually(lambda: [info.name for info in client.locks("followed")] == ["followed"])
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{own_server.port}"
        with (
            open_client(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write") as either,
            either.lock("elsewhere", timeout=0),
        ):  # it tries the next host
            assert own_server.value("SELECT count(*) FROM holdfast_locks WHERE name = 'elsewhere'") == 1

        standby.rows("SELECT pg_promote()")

        eventually(lambda: standby.value("SELECT pg_is_in_recovery()") is False)
        assert client.lock("followed").acquire(timeout=0) is None
        with client.lock("new", timeout=0):
            pass
    lease.release()


@pytest.fixture(scope="module")
def clock(folder: Path) -> WallClock:
    made = WallClock(folder / "clock")
    for path in (folder / "clock").iterdir():
        path.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def server_with_clock(folder: Path, clock: WallClock) -> Iterator[Server]:
    with running(Server(folder / "server_with_clock", environment=clock.environment)) as server:
        yield server


@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_holder_learns_of_its_loss_when_the_clock_is_set_forward(
    clock: WallClock, server_with_clock: Server, open_client: OpenClient, method: str
) -> None:
    url = server_with_clock.url_of("postgres", method=method)
    first, second = open_client(url), open_client(url)
    old = acquired(first, method)

    clock.step(60)

    new = second.lock(method, ttl=30).acquire(timeout=30)
    assert new is not None
    assert new.fence > old.fence
    with pytest.raises(LockLost):
        old.renew()
    new.renew()
    new.release()


def test_no_second_grant_and_no_repeated_fence_when_the_clock_is_set_back(
    clock: WallClock, server_with_clock: Server, open_client: OpenClient
) -> None:
    first, second = open_client(server_with_clock.url), open_client(server_with_clock.url)
    with first.lock("a") as before:
        pass
    old = acquired(first, "a")
    assert old.fence > before.fence

    clock.step(-3600)

    assert second.lock("a").acquire(timeout=0) is None
    old.renew()
    old.release()
    with second.lock("a", timeout=0) as new:
        assert new.fence > old.fence


@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_dead_holder_s_lock_is_free_after_its_ttl_although_the_clock_was_set_back(
    clock: WallClock, server_with_clock: Server, open_client: OpenClient, method: str
) -> None:
    url = server_with_clock.url_of("postgres", method=method)
    dead = Driver(url)
    (ticket,) = dead.tickets(["dead"])
    assert isinstance(dead.try_acquire(replaced(ticket, ttl=1.0)), Granted)

    clock.step(-3600)
    dead.close()

    lease = open_client(url).lock("dead").acquire(timeout=25)
    assert lease is not None
    lease.release()


@pytest.mark.parametrize("kind", ["semaphore", "rwlock"])
def test_a_dead_reader_s_lock_is_free_after_its_ttl_although_the_clock_was_set_back(
    clock: WallClock, server_with_clock: Server, open_client: OpenClient, kind: str
) -> None:
    dead = Driver(server_with_clock.url)
    (ticket,) = dead.tickets([kind])
    limit = None if kind == "rwlock" else 1
    assert isinstance(dead.try_acquire(replaced(ticket, ttl=1.0, limit=limit, exclusive=False)), Granted)

    clock.step(-3600)
    dead.close()

    client = open_client(server_with_clock.url)
    lock = client.rwlock(kind).write() if kind == "rwlock" else client.semaphore(kind, 1)
    lease = lock.acquire(timeout=25)
    assert lease is not None
    lease.release()


def test_a_live_holder_whose_clock_was_set_back_keeps_its_lease(
    clock: WallClock, server_with_clock: Server, open_client: OpenClient
) -> None:
    lease = acquired(open_client(server_with_clock.url), "live", ttl=3.0)

    clock.step(-3600)

    assert open_client(server_with_clock.url).lock("live").acquire(timeout=4.0) is None
    lease.check()
    lease.release()


@pytest.mark.parametrize(("fsync", "exclusion"), [("on", "durable-authority"), ("off", "best-effort")])
def test_exclusion_is_best_effort_when_fsync_is_off(
    folder: Path, open_client: OpenClient, fsync: str, exclusion: str
) -> None:
    settings = [f"fsync={fsync}", "full_page_writes=on"]
    with running(Server(folder / f"fsync {fsync}", settings=settings)) as server:
        client = open_client(server.url)
        acquired(client, "a").release()

        assert client.guarantees.exclusion.value == exclusion


def exclusion_at(url: str, open_client: OpenClient) -> str:
    client = open_client(url)
    acquired(client, "a").release()
    return client.guarantees.exclusion.value


def test_exclusion_is_best_effort_with_a_standby_unless_commits_wait_for_it(
    folder: Path, open_client: OpenClient
) -> None:
    settings = ["fsync=on", "full_page_writes=on"]
    with running(Server(folder / "followed", settings=settings)) as server:
        restricted = server.url_of("plain")
        server.rows("CREATE ROLE plain LOGIN; GRANT CREATE, USAGE ON SCHEMA public TO plain")
        assert exclusion_at(restricted, open_client) == "durable-authority"

        with running(Standby(folder / "follower", server)):
            eventually(lambda: bool(server.rows("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'")))
            assert exclusion_at(restricted, open_client) == "best-effort"

            server.rows("ALTER SYSTEM SET synchronous_standby_names = '*'")
            server.rows("SELECT pg_reload_conf()")
            eventually(lambda: bool(server.rows("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")))
            assert exclusion_at(restricted, open_client) == "durable-authority"

            server.rows("ALTER ROLE plain SET synchronous_commit = local")
            assert exclusion_at(restricted, open_client) == "best-effort"
