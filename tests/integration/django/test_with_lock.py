"""Hazard: a command runs without the lock of the project, or its status is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import holdfast
from tests.integration.django.conftest import Project

OpenClient = Callable[..., holdfast.Client]


def test_a_program_runs_under_the_lock_and_its_status_is_returned(
    small_project: Project, open_client: OpenClient, tmp_path: Path
) -> None:
    script = 'echo "$HOLDFAST_LOCK"; exit 7'

    output = small_project.manage("with_lock", "report", "--", "sh", "-c", script, status=7)

    assert output == "report\n"
    assert open_client(f"sqlite://{tmp_path}/db.sqlite3.locks").locks() == []


def test_a_management_command_runs_under_the_lock(small_project: Project) -> None:
    code = "import holdfast.django as h; print(len(h.client().inspect('report').holders))"

    output = small_project.manage("with_lock", "--manage", "report", "--", "shell", "-v", "0", "-c", code)

    assert output == "1\n"


def test_a_busy_lock_does_not_run_the_command(small_project: Project, open_client: OpenClient, tmp_path: Path) -> None:
    with open_client(f"sqlite://{tmp_path}/db.sqlite3.locks").lock("report"):
        output = small_project.manage("with_lock", "-n", "report", "--", "echo", "ran", status=124)

    assert "lock 'report' not acquired" in output
    assert "ran\n" not in output


def test_a_missing_command_and_a_private_store_are_refused(small_project: Project) -> None:
    missing = small_project.manage("with_lock", "report", status=2)
    small_project.use(default={"URL": "memory://"})
    private = small_project.manage("with_lock", "report", "--", "true", status=2)

    assert "COMMAND is missing" in missing
    assert "private to one process" in private
