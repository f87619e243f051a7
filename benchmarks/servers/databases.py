"""What databases need that refuse to run as root: another user, and a folder that this user may get to.

A folder with empty databases takes a second to make: it is made once, and copied for each case.
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
    """A folder of its own with empty databases in its folder `data`, until the end of the block.

    `make` gives the command that makes them in a folder. Theirs is not in the folder of the case, which is often
    one that no other user may get to.
    """
    with tempfile.TemporaryDirectory(prefix=f"holdfast-{name}-") as own:
        subprocess.run(["cp", "-a", _empty(name, make), own], check=True)  # with its owner
        yield own


def another_user(folder: str) -> list[str]:
    """What has a command run as nobody, if we are root, as whom a database refuses to run; the folder becomes its."""
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
