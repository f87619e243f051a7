"""Hazard: a wall clock that is set, and a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import BackendError
from holdfast.core.tickets import WAITER_LEASE, Granted, Waiting
from holdfast_lab.sim.mutants.base import replaced
from tests.integration.conftest import OpenClient
from tests.integration.mysql.conftest import is_busy
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server
from tests.support.processes import eventually
from tests.support.redis.clock import WallClock
from tests.support.server_process import running

Drive = Callable[[str], Driver]
METHODS = ["unique", "row", "version"]


@pytest.fixture(scope="module")
def moved() -> Iterator[tuple[Server, WallClock]]:
    """A server whose wall clock can be set."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mysql-") as folder:
        Path(folder).chmod(0o755)
        clock = WallClock(Path(folder) / "clock")
        with running(Server(Path(folder) / "server", environment=clock.environment)) as server:
            yield server, clock


@pytest.mark.parametrize("method", METHODS)
def test_leases_and_fences_stay_valid_when_the_clock_is_set_back(
    moved: tuple[Server, WallClock], open_client: OpenClient, method: str
) -> None:
    server, clock = moved
    client, other = (open_client(server.url_of(method=method)) for _ in range(2))
    with client.lock("back") as first:
        pass
    lease = client.lock("back", ttl=20).acquire(timeout=15)
    assert lease is not None

    clock.step(-3600)

    assert lease.fence > first.fence
    assert is_busy(other.lock("back"))
    lease.renew()
    lease.release()
    with other.lock("back", timeout=5) as after:
        assert after.fence > lease.fence
    clock.step(3600)


@pytest.mark.parametrize("method", METHODS)
def test_a_contender_corrects_the_expiry_of_a_lease_when_the_clock_was_set_back(
    moved: tuple[Server, WallClock], driver_of: Drive, method: str
) -> None:
    server, clock = moved
    holder, contender = (driver_of(server.url_of(method=method)) for _ in range(2))
    name = f"dead holder with {method}"
    assert isinstance(holder.try_acquire(holder.ticket(name, ttl=20.0)), Granted)
    holder.close()  # without a release: with method=row the next waiter gets the row lock

    clock.step(-3600)
    outcome = contender.try_acquire(contender.ticket(name))

    assert isinstance(outcome, Waiting)
    ((remaining,),) = [[holder.remaining for holder in contender.inspect(name).holders]]
    assert 0 < remaining <= 20.0
    clock.step(3600)


def test_a_contender_corrects_the_expiry_of_tickets_when_the_clock_was_set_back(
    moved: tuple[Server, WallClock], driver_of: Drive
) -> None:
    server, clock = moved
    driver = driver_of(server.url)
    reader, writer, other = (driver.ticket("shared", ttl=20.0) for _ in range(3))
    driver.try_acquire(replaced(reader, limit=None, exclusive=False))
    driver.try_acquire(writer, queue=True)

    clock.step(-3600)
    driver.try_acquire(other)

    info = driver.inspect("shared")
    assert 0 < info.holders[0].remaining <= 20.0
    assert 0 < info.waiters[0].remaining <= WAITER_LEASE
    driver.release(reader, writer)
    clock.step(3600)


@pytest.mark.parametrize("method", METHODS)
def test_leases_end_early_and_fences_grow_when_the_clock_is_set_forward(
    moved: tuple[Server, WallClock], open_client: OpenClient, method: str
) -> None:
    server, clock = moved
    client, other = (open_client(server.url_of(method=method)) for _ in range(2))
    lease = client.lock("forward", ttl=20, renew=False).acquire(timeout=15)
    assert lease is not None

    clock.step(60)

    with other.lock("forward", timeout=20) as after:
        assert after.fence > lease.fence
    with pytest.raises(holdfast.LockLost):
        lease.release()
    clock.step(-60)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A small file system."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192m,mode=777", "tmpfs", folder], check=False)
    if done.returncode:
        pytest.skip("a tmpfs cannot be mounted on this machine")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_an_error_and_loses_no_lease(open_client: OpenClient) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-mysql-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with small_disk(folder), running(Server(folder / "server")) as server:
            client = open_client(server.url)
            lease = client.lock("kept", ttl=90).acquire(timeout=15)
            assert lease is not None
            ballast = folder / "ballast"
            with open(ballast, "wb") as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * 65536)
                    file.flush()

            # The tables have some room left inside. After that the server reports a full disk, or ends.
            with pytest.raises(BackendError):
                for number in range(20000):
                    with client.lock(f"{number}:{'x' * 480}", meta={"pad": "y" * 8000}):
                        pass
            ballast.unlink()
            server.revive()

            def works() -> bool:
                with contextlib.suppress(BackendError), client.lock("again", timeout=0):
                    return True
                return False

            eventually(works)
            assert client.inspect("kept").holders[0].fence == lease.fence
            assert is_busy(open_client(server.url).lock("kept"))
            lease.renew()
            lease.release()
            client.close()
