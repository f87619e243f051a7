"""`make safety`: run holdfast and other libraries' locks under each fault, and write docs/safety.md.

One `holdfast verify` for each library and fault, with the same seed, on a server of its own. A result depends on the
timing of the machine: a library that keeps a promise here may break it in a longer run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.safety.page import Cell, page
from benchmarks.servers import Redis, Server, Zookeeper, missing

PAGE = Path("docs/safety.md")
SEED = 1
_EXTRA_MAX = 120.0  # seconds that a run may take longer than its load
_DATA_LOSS = "data-loss"  # as after a restart of a Redis without persistence
_NETWORK = ("pause", "kill", "fork", "cut", "no-replies")
_LOCAL = ("pause", "kill", "fork")


class Library(NamedTuple):
    """A library, and the store on which its lock is tested."""

    name: str
    package: str
    adapter: str  # a class in adapters.py; "" for holdfast
    server: Server | None = None  # None: files
    faults: Sequence[str] = _LOCAL


_REDIS, _ZOOKEEPER = Redis(), Zookeeper()
LIBRARIES = (
    Library("holdfast, Redis", "holdfast", "", _REDIS, (*_NETWORK, _DATA_LOSS)),
    Library("redis-py Lock", "redis", "RedisPy", _REDIS, (*_NETWORK, _DATA_LOSS)),
    Library("python-redis-lock", "python-redis-lock", "PythonRedisLock", _REDIS, (*_NETWORK, _DATA_LOSS)),
    Library("pottery Redlock", "pottery", "Pottery", _REDIS, (*_NETWORK, _DATA_LOSS)),
    Library("sherlock, Redis", "sherlock", "Sherlock", _REDIS, (*_NETWORK, _DATA_LOSS)),
    Library("tooz, Redis", "tooz", "ToozRedis", _REDIS, (*_NETWORK, _DATA_LOSS)),
    Library("holdfast, ZooKeeper", "holdfast", "", _ZOOKEEPER, _NETWORK),
    Library("kazoo Lock", "kazoo", "Kazoo", _ZOOKEEPER, _NETWORK),
    Library("holdfast, SQLite", "holdfast", ""),
    Library("filelock", "filelock", "FileLock"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make safety", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="libraries whose names contain this"
    )
    parser.add_argument("--fault", action="append", default=[], metavar="FAULT", help="only this fault")
    parser.add_argument("--seconds", type=float, default=12.0, metavar="S", help="of each run (default: 12)")
    parser.add_argument("--print", action="store_true", help=f"print the page instead of writing {PAGE}")
    arguments = parser.parse_args()
    wanted = arguments.only or [""]
    libraries = [library for library in LIBRARIES if any(part in library.name for part in wanted)]
    if not libraries:
        known = ", ".join(library.name for library in LIBRARIES)
        parser.error(f"--only {wanted[0]}: no such library (known: {known})")
    cells = [
        _run(library, fault, arguments.seconds)
        for library in libraries
        for fault in library.faults
        if not arguments.fault or fault in arguments.fault
    ]
    text = page(cells, {library.name: _version(library) for library in libraries}, arguments.seconds)
    if arguments.print or arguments.only or arguments.fault:
        print(text)
    else:
        PAGE.write_text(text)
        print(f"holdfast: wrote {PAGE}")
    return 0


def _run(library: Library, fault: str, seconds: float) -> Cell:
    print(f"holdfast: {library.name}, {fault}", file=sys.stderr, flush=True)
    if _version(library) is None or (library.server is not None and missing([library.server])):
        return Cell(library.name, fault, None, "not installed")
    with tempfile.TemporaryDirectory(prefix="holdfast-safety-") as folder, _store(library, folder) as url:
        shown, command = _command(library, fault, seconds, url)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "holdfast", *command, "--json"],
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + _EXTRA_MAX,
            )
        except subprocess.TimeoutExpired:
            return Cell(library.name, fault, None, f"did not end within {seconds + _EXTRA_MAX:g} s", shown)
        try:
            result: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return Cell(library.name, fault, None, done.stderr.strip().rpartition("\n")[2], shown)
    return Cell(library.name, fault, result, "", shown)


@contextlib.contextmanager
def _store(library: Library, folder: str) -> Iterator[str]:
    if library.server is not None:
        with library.server.run(folder, sorted(os.sched_getaffinity(0))) as url:
            yield url
    elif library.adapter:
        yield f"file://{folder}"
    else:
        yield f"sqlite://{folder}/locks.db"


def _command(library: Library, fault: str, seconds: float, url: str) -> tuple[str, list[str]]:
    """The command for people, and its arguments here."""
    words = ["verify", url, "--seed", str(SEED), "--seconds", f"{seconds:g}", "--only", fault]
    if fault == _DATA_LOSS:
        port = url.rpartition(":")[2].partition("/")[0]
        words += ["--fault", f"{_DATA_LOSS}=redis-cli -p {port} FLUSHALL"]
    if library.adapter:
        words += ["--adapter", f"benchmarks.safety.adapters:{library.adapter}"]
    shown = ["URL" if word == url else word for word in words]
    quoted = [f"'{_DATA_LOSS}=redis-cli FLUSHALL'" if word.startswith(f"{_DATA_LOSS}=") else word for word in shown]
    return f"holdfast {' '.join(quoted)}", words


def _version(library: Library) -> str | None:
    try:
        return importlib.metadata.version(library.package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
