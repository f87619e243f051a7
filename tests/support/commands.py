"""How a command of the command line ended, and `holdfast simulate`, which runs in this process: to import the simulator
in another one takes longer than most searches of tests.
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

from holdfast.cli import main


class Result(NamedTuple):
    """How a command ended."""

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
    """Run the command; `jobs` is for a search of many seeds, whose processes have to import the simulator."""
    more = ["--jobs", str(jobs)] if "--seeds" in arguments else []
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(["simulate", *arguments, *more])
        except SystemExit as ended:  # argparse refuses arguments with it
            status = int(ended.code or 0)
    return Result(status, out.getvalue(), errors.getvalue())
