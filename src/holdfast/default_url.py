"""The store of a client that was given no URL: $HOLDFAST_URL, or a file of this user.

A warning is given in environments in which that file is likely the wrong store. HOLDFAST_REQUIRE_URL forbids the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import FrameType
from urllib.parse import quote

from holdfast.errors import ConfigurationError, HoldfastWarning

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_FIX = "set HOLDFAST_URL, or give a url (url= in Python, --url on the command line)"

# Control groups that only container runtimes make. The services of the host itself are called docker.service and so on.
_CONTAINER_CGROUP = re.compile(
    r"/(?:kubepods|docker/|lxc/|lxc\.payload)|(?:docker|libpod|crio|cri-containerd)-[0-9a-f]{64}"
)


def default_url() -> str:
    """$HOLDFAST_URL, or a file in the user's state folder that is private to the user.

    Warns once per process where processes that are meant to share the file are likely to have different ones.

    Raises:
        ConfigurationError: HOLDFAST_REQUIRE_URL forbids that file, this system cannot have it, or this user has no
            home folder to keep it in.
    """
    url = os.environ.get("HOLDFAST_URL")
    if url:
        return url
    if requires_url(os.environ):
        raise ConfigurationError(f"no url is given, and HOLDFAST_REQUIRE_URL asks for one: {_FIX}")
    if not hasattr(os, "mkfifo"):
        raise ConfigurationError(
            f"no url is given, and the store that is used then, a file, does not work on {sys.platform}: {_FIX}"
        )
    folder = state_folder(os.environ)
    _warn_once(folder)
    return "sqlite://" + quote(os.path.normpath(os.path.join(folder, "holdfast", "locks.db")), safe="/@")


@contextlib.contextmanager
def naming_the_variable(url: object) -> Iterator[None]:
    """Let an error about a URL that was taken from the environment, because `url` is None, name the variable."""
    try:
        yield
    except ConfigurationError as error:
        if url is None and os.environ.get("HOLDFAST_URL"):
            raise ConfigurationError(f"HOLDFAST_URL is refused: {error}") from error
        raise


def requires_url(environ: Mapping[str, str]) -> bool:
    """Whether a missing URL is an error.

    Raises:
        ConfigurationError: the variable has a value that is neither yes nor no.
    """
    word = environ.get("HOLDFAST_REQUIRE_URL", "")
    if word.lower() not in _YES + _NO:
        raise ConfigurationError(f"HOLDFAST_REQUIRE_URL must be 1 or 0, not {word!r}")
    return word.lower() in _YES


def state_folder(environ: Mapping[str, str]) -> str:
    """Where this user's programs keep their state.

    Raises:
        ConfigurationError: this user has no home folder.
    """
    folder = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(folder):  # the XDG specification ignores a relative one: each folder would have its own locks
        folder = os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(folder):  # no $HOME, and no entry in /etc/passwd: it would be a folder named ~
        raise ConfigurationError("this user has no home folder to keep locks in: set HOLDFAST_URL, or HOME")
    return folder


def why_not_shared(environ: Mapping[str, str], *, root: str = "/", uid: int | None = None) -> str | None:
    """Why the default file is likely not the one that other processes use; None on a plain machine.

    Args:
        environ: The environment of the process.
        root: The folder that has the signs that container runtimes leave.
        uid: The user that this process runs as; None where the system has no such numbers.
    """
    sign = _container_sign(environ, root)
    if sign is not None:
        return f"this process is in a container ({sign}), and every container has a file of its own"
    if os.path.isabs(environ.get("XDG_STATE_HOME", "")):
        return None  # chosen by hand
    home = environ.get("HOME", "")
    if not home:
        return "HOME is not set, and programs of this user that have it may use another file"
    try:
        owner = os.stat(home).st_uid
    except OSError:
        return f"HOME is {home!r}, which cannot be read"
    if uid is not None and owner != uid:
        return f"HOME is {home!r}, which belongs to user {owner}, while this process runs as user {uid}"
    return None


def _container_sign(environ: Mapping[str, str], root: str) -> str | None:
    for variable in ("KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI_V4"):
        if environ.get(variable):
            return f"{variable} is set"
    for path in (".dockerenv", "run/.containerenv"):
        if os.path.exists(os.path.join(root, path)):
            return f"/{path} exists"
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="replace") as file:
            groups = file.read()
    except OSError:
        return None
    return "its control group says so" if _CONTAINER_CGROUP.search(groups) else None


_warned = False


def _warn_once(folder: str) -> None:
    global _warned
    if _warned:
        return
    reason = why_not_shared(os.environ, uid=os.geteuid() if hasattr(os, "geteuid") else None)
    if reason is not None:
        warnings.warn(
            f"no url is given, so locks are kept in {folder}/holdfast/locks.db and exclude only this user's programs "
            f"on this machine; {reason}: {_FIX} (HOLDFAST_REQUIRE_URL=1 makes a missing url an error)",
            HoldfastWarning,
            stacklevel=_frames_of_holdfast() + 1,
        )
    _warned = True  # set after the warning, so that each use raises where warnings are errors


def _frames_of_holdfast() -> int:
    """The number of frames of this package, from `_warn_once` on: the warning names the line that called them."""
    count = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `warnings` counts frames; inspect.stack() reads sources
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "holdfast":
        count, frame = count + 1, frame.f_back
    return count
