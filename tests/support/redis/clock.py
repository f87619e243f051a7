"""A wall clock that tests can move, for the processes that are started with it (walljump.c)."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from tests.support.server_process import missing

SOURCE = Path(__file__).with_name("walljump.c")


class WallClock:
    """Start servers with `environment`; `step` moves their clocks, once or many times, while they run."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            missing("no C compiler on this machine to build the movable wall clock with")
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "walljump.so"
        subprocess.run(
            [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        self._file = folder / "offset"
        self._offset = 0.0
        self.step(0.0)
        self.environment = {"LD_PRELOAD": str(library), "WALLJUMP": str(self._file)}

    def step(self, seconds: float) -> None:
        """Move the clock forward by this many seconds, or back if negative."""
        self._offset += seconds
        # Write in place, because the servers have mapped the file into their memory.
        mode = "r+b" if self._file.exists() else "wb"
        with open(self._file, mode) as file:
            file.write(struct.pack("q", round(self._offset * 1e9)))
