"""The wheels and source archives of `make dist`: complete, and usable in an environment that has no other package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest

import holdfast
from holdfast_lab import conformance

ROOT = Path(__file__).parents[2]


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST_"))}
    done = subprocess.run(command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: str, folder: Path) -> Path:
    """Build with the hatchling of this environment: an isolated build would need an index."""
    run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder], source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return [build(ROOT, "wheel", folder / "holdfast"), build(ROOT / "packages" / "lab", "wheel", folder / "lab")]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, wheels: list[Path]) -> Path:
    """The scripts of an environment with both wheels, and without any other package."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    run([*pip, "install", "-qq", "--no-index", "--no-deps", *wheels], folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def with_pytest(empty: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with both wheels, the wheel of the example, pytest and nothing else."""
    folder = tmp_path_factory.mktemp("with_pytest")
    environment = folder / "environment"
    shutil.copytree(empty.parent, environment, symlinks=True)
    python = environment / "bin" / "python"
    example = build(ROOT / "examples" / "files_backend", "wheel", folder / "example")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    run([*pip, "install", "-qq", "--no-index", "--no-deps", example], folder)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):  # of this environment: no index is needed
        for top in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(str(distribution(name).locate_file(top)))
    return python


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_conformance_suite_runs_on_an_installed_backend(with_pytest: Path, tmp_path: Path) -> None:
    suite: list[str | Path] = [
        with_pytest,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--holdfast-url=files://{tmp_path}/locks",
    ]
    # test_plugins.py runs the whole suite on this backend. These tests start threads and processes too.
    some = [*(f"holdfast_lab.conformance.{module}" for module in ("test_lock", "test_fork")), "-k", "threads or spawn"]

    everything = run([*suite, "--collect-only", "--pyargs", "holdfast_lab.conformance"], tmp_path)
    results = run([*suite, "--pyargs", *some], tmp_path)

    collected = set(re.findall(r"(test_\w+)\.py::", everything))
    assert collected == {path.stem for path in Path(conformance.__path__[0]).glob("test_*.py")}
    assert "[threads-files]" in everything
    assert re.search(r"^\d+ passed", results, re.MULTILINE)


def test_the_conformance_suite_refuses_to_run_without_a_store(with_pytest: Path, tmp_path: Path) -> None:
    suite: list[str | Path] = ["--pyargs", "holdfast_lab.conformance.test_lock"]
    command = [with_pytest, "-m", "pytest", "-p", "no:cacheprovider", *suite]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "needs a store: --holdfast-url=URL" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_failing_assertion_in_a_helper_of_the_suite_shows_its_values(with_pytest: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from types import SimpleNamespace\n"
        "from holdfast_lab.conformance.event_ledger import Ledger\n"
        "def test_it():\n"
        "    ledger = Ledger(SimpleNamespace(subscribe=lambda _: None))\n"
        "    ledger.open[7] = 'acquired'\n"
        "    ledger.check()\n"
    )

    done = subprocess.run(
        [with_pytest, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "assert not {7: 'acquired'}" in done.stdout


def test_the_first_screen_of_the_readme_runs_in_an_empty_environment(empty: Path, tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    code = f"{program[1]}\nclient.close(); print(holdfast.__file__, lease.fence)"

    file, fence = run([empty / "python", "-c", code], tmp_path, XDG_STATE_HOME=str(tmp_path)).split()

    assert Path(file).is_relative_to(empty.parent)
    assert int(fence) > 0


def test_the_commands_run_in_an_empty_environment(empty: Path, tmp_path: Path) -> None:
    assert run([empty / "holdfast", "--version"], tmp_path) == f"holdfast {holdfast.__version__}\n"
    assert "hello" in run([empty / "holdfast", "run", "a", "echo", "hello"], tmp_path, XDG_STATE_HOME=str(tmp_path))
    assert "--seeds" in run([empty / "holdfast", "simulate", "--help"], tmp_path)  # a run would need a Lua


def test_a_wheel_has_all_files_of_its_package_and_no_others(wheels: list[Path]) -> None:
    sources = [ROOT / "src", ROOT / "packages" / "lab" / "src"]
    for wheel, source in zip(wheels, sources, strict=True):
        with zipfile.ZipFile(wheel) as archive:
            packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        files = {
            path.relative_to(source).as_posix()
            for path in source.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }

        assert packed == files
        assert any(name.endswith("/py.typed") for name in packed)


@pytest.mark.parametrize("source", [ROOT, ROOT / "packages" / "lab"], ids=["holdfast", "holdfast-lab"])
def test_a_source_archive_builds_the_same_wheel(source: Path, wheels: list[Path], tmp_path: Path) -> None:
    with tarfile.open(build(source, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    again = build(unpacked, "wheel", tmp_path / "wheel")

    (first,) = [wheel for wheel in wheels if wheel.name == again.name]
    assert contents(again) == contents(first)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
