"""A description of the machine, as far as it matters for a comparison, without anything that identifies it."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import repeat

from benchmarks.contender import Contender
from benchmarks.runner import ROOT


def describe(cores: Sequence[int], folder: str | None, contenders: Sequence[Contender]) -> dict[str, str]:
    """Return one line per property."""
    versions = {
        contender.package: contender.version for contender in contenders if contender.package and contender.version
    }
    ours = versions.pop("holdfast", "?")
    servers = {
        contender.server.name: contender.server.version() for contender in contenders if contender.server is not None
    }
    return {
        "holdfast": f"{ours}{_commit()}",
        "peers": ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) or "none installed",
        "servers": ", ".join(f"{name} {version}" for name, version in servers.items()) or "none",
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores, {len(cores)} of them used",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "file system": file_system(folder or tempfile.gettempdir()),
        "clock": f"{clock_cost() * 1e9:.0f} ns to read, not subtracted",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def file_system(folder: str) -> str:
    """Return the type of the file system of the folder, with its relevant options."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as file:
        for line in file:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == wanted:
                return kind.split()[0]
    return "unknown"


def clock_cost() -> float:
    """Return the seconds for one reading of the clock."""
    clock, times = time.perf_counter, 100_000
    started = clock()
    for _ in repeat(None, times):
        clock()
    return (clock() - started) / times


def _cpu_model() -> str:
    with open("/proc/cpuinfo") as file:
        match = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def _commit() -> str:
    """Return the commit, and whether there are uncommitted changes; "" outside of a repository."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" at {commit}{' with changes' if changed else ''}"


def _git(*arguments: str) -> str:
    shown = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return shown.stdout.strip()
