"""Earlier versions of holdfast, built from their commits, each in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from tests.support.server_process import missing

ROOT = Path(__file__).parents[2]


class Release(NamedTuple):
    """A line of tests/formats/releases.txt."""

    version: str
    commit: str


def releases() -> list[Release]:
    lines = (ROOT / "tests" / "formats" / "releases.txt").read_text().splitlines()
    return [Release(*line.split()) for line in lines if not line.startswith("#")]


def unpack(release: Release, folder: Path) -> Path:
    """Build the wheel of a release and unpack it. Returns the folder for PYTHONPATH.

    The test is skipped (CI=true: fails) if the clone does not have the commit.
    """
    source, installed = folder / "source", folder / "installed"
    source.mkdir()
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", "--format=tar", release.commit], capture_output=True, check=False
    )
    if archive.returncode:
        missing(
            f"commit {release.commit[:12]} of release {release.version} is not in this clone; `git fetch --unshallow` "
            f"gets it: {archive.stderr.decode().strip()}"
        )
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "wheel"],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = (folder / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(installed)
    return installed
