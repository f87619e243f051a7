"""Helpers for databases that refuse to run as root: another user, and a folder that this user can access.

Creating a folder with empty databases takes a second, so it is created once and copied for each case.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence

from benchmarks.servers.base import ServerFailed

DATA = "data"


@contextlib.contextmanager
def copied(name: str, make: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """Return a new folder with empty databases in its folder `data`, until the end of the block.

    `make` returns the command that creates them. The folder is not in that of the case, which other users often cannot
    access.
    """
    with tempfile.TemporaryDirectory(prefix=f"holdfast-{name}-") as own:
        subprocess.run(["cp", "-a", _empty(name, make), own], check=True)  # with its owner
        yield own


def another_user(folder: str) -> list[str]:
    """Return the command prefix to drop root privileges, and change the owner of the folder accordingly."""
    if os.getuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups", "--"]


@functools.cache
def _empty(name: str, make: Callable[[str], Sequence[str]]) -> str:
    made = tempfile.mkdtemp(prefix=f"holdfast-{name}-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    data = os.path.join(made, DATA)
    command = [*another_user(made), *make(data)]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"{os.path.basename(make(data)[0])} failed: {done.stderr.strip()}")
    return data
