"""Hazard: `make test` does not end, or reports fewer failures than there are: workers lose one, or run no test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import PATIENCE

ROOT = Path(__file__).parents[2]
TESTS = """
import os, sys, warnings
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    yield tmp_path_factory.getbasetemp()
    Path("ended", str(os.getpid())).touch()


@pytest.mark.parametrize("number", range(40))
def test_many(number, folder, capfd):
    with open(Path("ran", str(number)), "a") as file:
        file.write(f"{os.getpid()}\\n")
    print("only in its own output")
    assert capfd.readouterr().out == "only in its own output\\n"


def test_failing():
    print("what the failing test wrote")
    assert [] == [1]


def test_warning():
    warnings.warn("a warning of a test")


def test_error_in_setup(missing):
    pass


@pytest.mark.parametrize("number", range(3))
def test_crash(number):
    os._exit(3)


def test_interrupt():
    raise KeyboardInterrupt("left behind")


@pytest.mark.parametrize("number", range(3))
def test_after_interrupt(number):
    with pytest.raises(TypeError):  # CPython raises another error while it handles one
        dict(**{"a": 1}, **{"a": 2})
"""


def run(folder: Path, *options: str) -> str:
    for name in ("ran", "ended"):
        (folder / name).mkdir(exist_ok=True)
    return run_files(folder, "-rA", "--workers", "4", *options, test_it=TESTS, status=1)


def run_files(folder: Path, *options: str, status: int, **files: str) -> str:
    """Run the tests of these files, and return what pytest has printed."""
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.support.forked_run"]')
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    with open(folder / "output", "w") as output:  # not a pipe, which a child that a test leaves would keep open
        done = subprocess.run(
            # Not with our own configuration.
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", *options],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=False,
        )
    text = (folder / "output").read_text()
    assert done.returncode == status, text
    return text


def test_each_test_runs_once_and_every_problem_is_reported(tmp_path: Path) -> None:
    output = run(tmp_path)

    assert re.search(r"= 5 failed, 44 passed, 1 warning, 1 error in ", output)
    assert "assert [] == [1]" in output
    assert "what the failing test wrote" in output
    assert "fixture 'missing' not found" in output
    assert "UserWarning: a warning of a test" in output
    assert output.count("a worker ended with 3 in this test") == 3 * 2  # a section and a line of the summary
    assert "KeyboardInterrupt: left behind" in output
    ran = {path.name: path.read_text().split() for path in (tmp_path / "ran").iterdir()}
    assert sorted(map(int, ran)) == list(range(40))
    assert all(len(pids) == 1 for pids in ran.values())
    assert len({pid for pids in ran.values() for pid in pids}) > 1


def test_a_report_in_xml_has_each_problem(tmp_path: Path) -> None:
    run(tmp_path, "--junit-xml", "report.xml")

    assert 'errors="1" failures="5" skipped="0" tests="50"' in (tmp_path / "report.xml").read_text()


def test_each_worker_ends_its_fixtures(tmp_path: Path) -> None:
    run(tmp_path, "-k", "many or failing")

    used = {path.read_text().strip() for path in (tmp_path / "ran").iterdir()}
    assert {path.name for path in (tmp_path / "ended").iterdir()} == used


def test_a_limit_of_failures_ends_the_run(tmp_path: Path) -> None:
    output = run(tmp_path, "--maxfail", "1", "-k", "failing or crash")

    assert re.search(r"stopping after [12] failures", output)


LEAVES_CHILD = """
import os, signal
from pathlib import Path


def test_leaves_child():
    pid = os.fork()
    if not pid:
        signal.pause()
    Path("pid").write_text(str(pid))
"""


def test_a_run_ends_while_a_child_of_a_test_runs(tmp_path: Path) -> None:
    try:
        output = run_files(tmp_path, "--workers", "1", test_leaves_child=LEAVES_CHILD, status=0)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    assert "1 passed" in output


RETURNS_IN_CHILD = """
import os


def test_fork():
    pid = os.fork()
    if not pid:
        {outcome}
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_following():
    pass
"""


@pytest.mark.parametrize("outcome", ["return", "raise AssertionError", "raise KeyboardInterrupt"])
def test_a_child_in_which_a_test_ends_runs_no_other_test_and_ends_with_a_status(outcome: str, tmp_path: Path) -> None:
    text = RETURNS_IN_CHILD.format(outcome=outcome)

    output = run_files(tmp_path, "--workers", "1", test_fork=text, status=0)

    assert "2 passed" in output


# The first test, in the first worker, waits for the end of the second worker, which holds a lock on a file.
WAITS_FOR_END = """
import fcntl, os, time


def test_first():
    while not os.path.exists("locked"):
        time.sleep(0.01)
    with open("locked") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
"""
INTERRUPTS_ITS_END = """
import _thread, atexit, fcntl, os


def test_second():
    global file
    file = open("new", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    os.rename("new", "locked")
    atexit._clear()
    atexit.register(_thread.interrupt_main)
"""


def test_an_interrupt_of_a_worker_that_ends_interrupts_no_other_worker(tmp_path: Path) -> None:
    output = run_files(tmp_path, "--workers", "2", test_first=WAITS_FOR_END, test_second=INTERRUPTS_ITS_END, status=0)

    assert "2 passed" in output


DIES_AT_EXIT = """
import atexit, os


def test_last():
    atexit.register(os._exit, 4)
"""


def test_a_worker_that_dies_after_its_last_test_fails_the_run(tmp_path: Path) -> None:
    output = run_files(tmp_path, "--workers", "2", test_last=DIES_AT_EXIT, status=pytest.ExitCode.INTERNAL_ERROR)

    assert "a worker ended with 4 after its tests" in output
    assert "1 passed" in output


NOTES_OLD_FOLDERS = """
import getpass, os
from pathlib import Path

pytest_plugins = ["tests.support.forked_run"]
OLD = Path(os.environ["PYTEST_DEBUG_TEMPROOT"], f"pytest-of-{getpass.getuser()}", "pytest-0")


def pytest_configure():
    OLD.mkdir(0o700, parents=True)
    for number in range(1, 9):
        OLD.with_name(f"pytest-{number}").mkdir(0o700)
    OLD.parent.chmod(0o700)


def pytest_sessionfinish():  # after the end of the workers
    print(f"kept by the workers: {OLD.exists()}")


def pytest_unconfigure():
    print(f"kept by the parent: {OLD.exists()}")
"""


def test_only_the_parent_deletes_the_folders_of_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))

    output = run_files(
        tmp_path, "-s", "--workers", "2", conftest=NOTES_OLD_FOLDERS, test_it="def test_it(): pass", status=0
    )

    assert "kept by the workers: True" in output
    assert "kept by the parent: False" in output


INTERRUPTS_FIRST_WORKER = """
import os, signal
from pathlib import Path

pytest_plugins = ["tests.support.forked_run"]


def interrupt():
    if not Path("interrupted").exists():
        Path("interrupted").touch()
        os.kill(os.getpid(), signal.SIGINT)


os.register_at_fork(after_in_child=interrupt)
"""
TWO_TESTS = """
def test_first():
    pass


def test_second():
    pass
"""


def test_an_interrupt_of_a_worker_at_its_start_is_reported(tmp_path: Path) -> None:
    output = run_files(tmp_path, "--workers", "1", conftest=INTERRUPTS_FIRST_WORKER, test_it=TWO_TESTS, status=1)

    assert "1 failed, 1 passed" in output
    assert "KeyboardInterrupt" in output
