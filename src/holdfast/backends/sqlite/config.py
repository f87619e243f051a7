"""The configuration of a client of a lock file, parsed from its URL."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import quote, unquote

from holdfast.errors import ConfigurationError
from holdfast.url import Address
from holdfast.url_parts import flag, values_of

OPTIONS = (
    flag(
        "local",
        "no",
        "the file system is used by this machine only; needed if holdfast does not know the type of the file system",
    )._replace(field="is_local"),
)


class SqliteConfig(NamedTuple):
    """A lock file."""

    url: str
    path: str  # absolute
    is_local: bool  # the user asserts that no other machine can use the file system


def config_of(address: Address) -> SqliteConfig:
    """The configuration in an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    return SqliteConfig(url=address.redacted, path=_path(address), **values_of(address.options, OPTIONS))


def _path(address: Address) -> str:
    """The absolute path in a URL: `sqlite:///folder/file`, or with four slashes as in SQLAlchemy."""
    host, path = unquote(address.host).rpartition("@")[2], address.path  # before an @ there may be a password
    if host:
        # A path of the root folder without its slash, or a path of the working folder.
        is_of_root = path and os.path.isdir(f"/{host}") and host[0] not in "~."
        suggested = f"/{host}{path}" if is_of_root else os.path.abspath(os.path.expanduser(host + path))
        raise ConfigurationError(
            f"url has the host {host!r}, but a lock file is on this machine: write its absolute path after three "
            f"slashes, {_url(suggested)}"
        )
    if not path.startswith("/") or path == "/":
        raise ConfigurationError("url must name the absolute path of a lock file, as in sqlite:///folder/file")
    if path.startswith("//"):
        return "/" + path.lstrip("/")
    # A program that runs as root and means its working folder would create these in the root folder.
    top, _, below = path[1:].partition("/")
    if not (os.path.isdir(f"/{top}") if below else os.path.exists(path)):
        raise ConfigurationError(
            f"url names {path!r}, but there is no {top!r} in the root folder. Relative paths are refused, because each "
            f"working folder would have its own locks: write {_url(os.path.abspath(path[1:]))} for a path in this one, "
            f"or {_url('//' + path[1:])} for a new one in the root folder"
        )
    return path


def _url(path: str) -> str:
    return f"sqlite://{quote(path, safe='/@')}"
