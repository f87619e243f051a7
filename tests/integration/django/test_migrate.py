"""Hazard: several servers start at once, and all of them migrate the same database."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from tests.integration.django.conftest import Project
from tests.support.processes import PATIENCE, eventually

LOCK = "django-migrate:default"
COUNT = "from tests.integration.django.project.shop.models import Counter; print(Counter.objects.count())"

OpenClient = Callable[..., holdfast.Client]


@pytest.mark.slow
@pytest.mark.parametrize(
    "project",
    # `test_the_workers_of_gunicorn_exclude_each_other` has a lock in MariaDB.
    ["postgresql", pytest.param("mariadb", marks=pytest.mark.extra)],
    indirect=True,
)
def test_one_of_three_processes_migrates_and_the_others_find_nothing_to_do(project: Project) -> None:
    project.environment["PROJECT_WAITERS"] = "2"

    processes = [project.start("locked_migrate") for _ in range(3)]
    outputs = [process.communicate(timeout=PATIENCE * 3)[0] for process in processes]

    assert [process.returncode for process in processes] == [0] * 3, outputs
    assert sorted("Applying shop.0001_initial... OK" in output for output in outputs) == [False] * 2 + [True], outputs
    assert sorted("No migrations to apply" in output for output in outputs) == [False] + [True] * 2, outputs
    assert sum(f"Waiting for lock '{LOCK}', held by" in output for output in outputs) == 2, outputs
    assert project.python(COUNT) == "1\n"


def test_all_options_of_migrate_are_accepted(small_project: Project) -> None:
    small_project.manage("locked_migrate", "auth", "0001", "--database", "default", "--verbosity", "0")

    plan = small_project.manage("locked_migrate", "--plan", "--no-input", "--skip-checks")

    assert "auth.0002" in plan
    assert "auth.0001" not in plan


def test_the_wait_ends_after_the_timeout_with_the_status_of_a_busy_lock(
    small_project: Project, open_client: OpenClient, tmp_path: Path
) -> None:
    with open_client(f"sqlite://{tmp_path}/db.sqlite3.locks").lock(LOCK):
        output = small_project.manage("locked_migrate", "--timeout", "100ms", status=124)

    assert "not acquired in 0.1 s" in output
    assert "Applying" not in output


def test_a_process_that_has_lost_the_lock_starts_no_further_migration(
    small_project: Project, open_client: OpenClient, tmp_path: Path
) -> None:
    small_project.use(default={"DATABASE": "default", "TTL": "1s"})
    small_project.environment["PROJECT_WAITERS"] = "1"
    process = small_project.start("locked_migrate", "shop")
    operator = open_client(f"sqlite://{tmp_path}/db.sqlite3.locks")
    printed = _read_until(process, "Applying shop.0001_initial")

    assert operator.break_lock(LOCK, operator.inspect(LOCK).holders[0].fence or 0)
    with operator.lock(LOCK):
        printed += _read_until(process, "was lost")
        waiter = threading.Thread(target=_acquire_and_release, args=[operator])
        waiter.start()  # lets the first migration end
        printed += process.communicate(timeout=PATIENCE)[0]
    waiter.join()

    assert process.returncode == 123, printed
    assert " OK\n" in printed
    assert "shop.0002" not in printed


def test_a_process_that_gets_sigterm_releases_the_lock(
    small_project: Project, open_client: OpenClient, tmp_path: Path
) -> None:
    small_project.environment["PROJECT_WAITERS"] = "9"
    process = small_project.start("locked_migrate", "shop")
    operator = open_client(f"sqlite://{tmp_path}/db.sqlite3.locks")
    eventually(lambda: len(operator.inspect(LOCK).holders) == 1)

    process.send_signal(signal.SIGTERM)

    assert process.wait(PATIENCE) == 143
    assert operator.inspect(LOCK).holders == ()


def test_the_next_process_migrates_when_the_first_is_killed(small_project: Project) -> None:
    small_project.environment["PROJECT_WAITERS"] = "9"
    killed = small_project.start("locked_migrate", "shop")
    _read_until(killed, "Applying shop.0001_initial")

    killed.kill()
    small_project.environment["PROJECT_WAITERS"] = "0"
    output = small_project.manage("locked_migrate", "shop")

    assert "Applying shop.0001_initial... OK" in output
    assert small_project.python(COUNT) == "1\n"


def _read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    printed = ""
    while text not in printed:
        character = process.stdout.read(1)
        assert character, printed
        printed += character
    return printed


def _acquire_and_release(client: holdfast.Client) -> None:
    with client.lock(LOCK):
        pass
