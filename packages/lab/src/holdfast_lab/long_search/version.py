"""The version of the code that a search tests: a commit of git, or the version of the package."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import holdfast
import holdfast_lab

_DIGITS = 10


def code_version() -> str:
    """The last commit that changed holdfast or the laboratory; outside a repository, the version of holdfast.

    A digest of the sources is added if they have changes that are not committed.
    """
    folders = [str(Path(package.__path__[0]).resolve()) for package in (holdfast, holdfast_lab)]
    commit = _git(folders, "rev-list", "-1", "--abbrev-commit", f"--abbrev={_DIGITS}", "HEAD")
    if not commit:
        return holdfast.__version__
    return f"{commit}+{_digest(folders)}" if _git(folders, "status", "--porcelain") else commit


def _git(folders: list[str], *arguments: str) -> str:
    """The output of git for these folders; empty if they are not in a repository, or if there is no git."""
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            ["git", "-C", folders[0], *arguments, "--", *folders],  # noqa: S607 - the git of the user
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _digest(folders: list[str]) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGITS]
