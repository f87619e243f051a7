"""Hazard: `make test` reports fewer failures than there are, because its workers lose one or run no test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.support.forked_run"]')
    (folder / "test_it.py").write_text(TESTS)
    for name in ("ran", "ended"):
        (folder / name).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--workers", "4"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", ".", *options, "test_it.py"],  # not with our own configuration
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout


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


def test_each_worker_ends_its_fixtures(tmp_path: Path) -> None:
    run(tmp_path, "-k", "many or failing")

    used = {path.read_text().strip() for path in (tmp_path / "ran").iterdir()}
    assert {path.name for path in (tmp_path / "ended").iterdir()} == used


def test_a_limit_of_failures_ends_the_run(tmp_path: Path) -> None:
    output = run(tmp_path, "--maxfail", "1", "-k", "failing or crash")

    assert re.search(r"stopping after [12] failures", output)
