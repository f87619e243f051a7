"""Run commands on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds; a longer wait is a failure
ESCAPE_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# The terminal sends Ctrl-C to its foreground processes, so the command needs it as its controlling terminal.
_WITH_OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class OnTerminal:
    """A command on a pseudo-terminal, and its output so far."""

    def __init__(self, command: list[str], environment: dict[str, str], *, columns: int = 80, lines: int = 24) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WITH_OWN_TERMINAL, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.output = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.output:
            assert self._read_more(deadline), f"ended without {text!r}:\n{self.output}"

    def finish(self) -> int:
        """Read to the end and return the exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._read_more(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    @property
    def text(self) -> str:
        return ESCAPE_CODES.sub("", self.output)

    def _read_more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no more output:\n{self.output}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux raises it when the other side is closed
            return False
        self.output += data.decode(errors="replace")
        return bool(data)


TerminalStarter = Callable[[list[str], dict[str, str]], OnTerminal]
