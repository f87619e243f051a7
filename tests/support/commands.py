"""The result of a command, and `holdfast simulate` in this process.

A new process would import the simulator again, which takes longer than most searches of tests.
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

from holdfast.cli import main


class Result(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    errors: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def simulate(*arguments: str, jobs: int = 1) -> Result:
    """Run the command. `jobs` is the number of processes of a search; more than one pays off for many seeds only."""
    more = ["--jobs", str(jobs)] if "--seeds" in arguments else []
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(["simulate", *arguments, *more])
        except SystemExit as ended:  # argparse refuses arguments with it
            status = int(ended.code or 0)
    return Result(status, out.getvalue(), errors.getvalue())
