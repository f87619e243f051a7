"""A default store that other processes do not share is not used silently: a warning, or an error on request."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import default_url
from holdfast.default_url import why_not_shared

DOCKER = "0::/system.slice/docker-" + "0f" * 32 + ".scope\n"
PLAIN = "0::/user.slice/user-1000.slice/session-2.scope\n1:cpu:/system.slice/docker.service\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root folder of a plain machine."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(PLAIN)
    (tmp_path / "run").mkdir()
    (tmp_path / "home").mkdir()
    return tmp_path


def reason(machine: Path, *, uid: Any = None, **variables: Any) -> str | None:
    environ = {"HOME": str(machine / "home"), **variables}
    return why_not_shared(environ, root=str(machine), uid=os.getuid() if uid is None else uid)


def test_a_plain_machine_gives_no_reason_to_warn(machine: Path) -> None:
    assert reason(machine) is None
    (machine / "proc/self/cgroup").unlink()
    assert reason(machine) is None


@pytest.mark.parametrize("variable", ["KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI_V4"])
def test_a_variable_indicates_a_container(machine: Path, variable: str) -> None:
    expected = f"this process is in a container ({variable} is set), and every container has a file of its own"

    assert reason(machine, **{variable: "10.0.0.1"}) == expected
    assert reason(machine, **{variable: ""}) is None


@pytest.mark.parametrize("path", [".dockerenv", "run/.containerenv"])
def test_a_file_indicates_a_container(machine: Path, path: str) -> None:
    (machine / path).touch()

    assert f"in a container (/{path} exists)" in str(reason(machine))


@pytest.mark.parametrize(
    "group",
    [
        DOCKER,
        "12:pids:/docker/" + "0f" * 32,
        "0::/kubepods.slice/kubepods-burstable.slice",
        "0::/machine.slice/libpod-" + "0f" * 32 + ".scope",
        "4:memory:/lxc/web-1",
        "0::/lxc.payload.web-1/init.scope",
    ],
)
def test_a_control_group_indicates_a_container(machine: Path, group: str) -> None:
    (machine / "proc/self/cgroup").write_text(PLAIN + group)

    assert "in a container (its control group says so)" in str(reason(machine))


def test_a_home_that_is_missing_or_of_another_user_is_a_reason(machine: Path) -> None:
    home, own_uid = str(machine / "home"), os.getuid()

    assert "HOME is not set" in str(reason(machine, HOME=""))
    assert (
        f"HOME is {home!r}, which belongs to user {own_uid}, while this process runs as user {own_uid + 1}"
        == reason(machine, uid=own_uid + 1)
    )
    assert "which cannot be read" in str(reason(machine, HOME=f"{home}/gone"))


def test_the_home_is_ignored_when_a_state_folder_is_set(machine: Path) -> None:
    assert reason(machine, HOME="", XDG_STATE_HOME=str(machine)) is None
    assert reason(machine, HOME="", XDG_STATE_HOME="relative") is not None


def test_the_warning_is_given_once_with_the_fix_and_the_line_of_the_caller(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        "import holdfast\n"
        "with holdfast.lock('a'):\n"
        "    holdfast.Client().close()\n"
        "    holdfast.AsyncClient('memory://')\n"
    )

    result = run([sys.executable, str(program)], tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1")

    assert result.returncode == 0
    assert result.stderr.count("HoldfastWarning") == 1
    assert f"{program}:2: HoldfastWarning: no url is given, so locks are kept in {tmp_path}/holdfast/locks.db" in (
        result.stderr
    )
    assert "KUBERNETES_SERVICE_HOST is set" in result.stderr
    assert "set HOLDFAST_URL, or give a url (url= in Python, --url on the command line)" in result.stderr


def test_a_url_from_the_environment_needs_no_warning(tmp_path: Path) -> None:
    code = "import holdfast\nwith holdfast.lock('a'): pass"
    url = f"sqlite://{tmp_path}/locks.db"

    result = run([sys.executable, "-c", code], tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1", HOLDFAST_URL=url)

    assert (result.returncode, result.stderr) == (0, "")


def test_each_use_raises_when_warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_url, "_warned", False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        for make in (holdfast.Client, holdfast.AsyncClient, holdfast.Client):
            with pytest.raises(holdfast.HoldfastWarning, match="KUBERNETES_SERVICE_HOST is set"):
                make()


def test_the_command_line_warns_in_one_line(tmp_path: Path) -> None:
    result = run([sys.executable, "-m", "holdfast", "ls"], tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1")

    warning, *others = result.stderr.splitlines()
    assert warning.startswith("holdfast: warning: no url is given, so locks are kept in ")
    assert not [line for line in others if "arning" in line]


@pytest.mark.parametrize("word", ["1", "true", "YES", "on"])
def test_a_required_url_that_is_missing_is_an_error_in_python(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("HOLDFAST_REQUIRE_URL", word)
    monkeypatch.setattr("holdfast.default._clients.made", {})
    decorated = holdfast.locked("a")(lambda: None)

    async def awaited() -> None:
        async with holdfast.AsyncClient() as client, client.lock("a"):
            pass

    for use in (
        holdfast.Client,
        lambda: asyncio.run(awaited()),
        lambda: holdfast.lock("a"),
        lambda: holdfast.rwlock("a"),
        lambda: holdfast.semaphore("a", 2),
        lambda: holdfast.lock_all(["a"]),
        lambda: holdfast.election("a"),
        decorated,
    ):
        with pytest.raises(holdfast.ConfigurationError, match="no url is given, and HOLDFAST_REQUIRE_URL asks"):
            use()
    monkeypatch.setenv("HOLDFAST_URL", "memory://")
    holdfast.Client().close()


@pytest.mark.parametrize(
    "command",
    [
        ["run", "a", "--", "true"],
        ["ls"],
        ["show", "a"],
        ["revoke", "a"],
        ["break", "a", "--fence", "1"],
        ["watch"],
        ["init"],
    ],
    ids=lambda command: command[0],
)
def test_a_required_url_that_is_missing_is_an_error_of_every_command(tmp_path: Path, command: list[str]) -> None:
    result = run([sys.executable, "-m", "holdfast", *command], tmp_path, HOLDFAST_REQUIRE_URL="1")

    assert result.returncode == 2
    assert result.stderr.startswith(
        "holdfast: no url is given, and HOLDFAST_REQUIRE_URL asks for one: set HOLDFAST_URL"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["", "0", "false", "No", "off"])
def test_a_url_need_not_be_required(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("HOLDFAST_REQUIRE_URL", word)

    holdfast.Client().close()


def run(command: list[str], state: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(state), **variables}
    environment["PYTHONPATH"] = str(Path(holdfast.__file__).parents[1])
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
