"""One contender, one measure, one round: the program of a process that the runner starts.

    python -m benchmarks.case '{"measure": …, "contender": …, "numbers": …, "location": …, "cores": [1], "limit": 60}'

Its last line on stdout is the answer as JSON: {"figures": {…}} or {"failed": "…"}.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from typing import Any

from benchmarks.contender import contender_named
from benchmarks.measure import all_measures


def main(text: str) -> None:
    """Run the case that the JSON text describes."""
    job: dict[str, Any] = json.loads(text)
    signal.alarm(int(job["limit"]) + 5)  # in case the runner was killed
    answers = os.dup(1)
    os.dup2(2, 1)  # output of a peer must not be read as the answer
    os.sched_setaffinity(0, job["cores"])  # as taskset does; child processes inherit it
    measure = next(measure for measure in all_measures() if measure.name == job["measure"])
    answer: dict[str, Any]
    try:
        contender = contender_named(job["contender"])
        contender.load()
        answer = {"figures": measure.run(contender, job["numbers"], job["location"])}
    except Exception as error:
        traceback.print_exc()
        answer = {"failed": f"{type(error).__name__}: {error}"}
    with open(answers, "w") as stream:
        json.dump(answer, stream)
    # The end of the interpreter traverses all objects several times, except frozen ones.
    gc.freeze()


if __name__ == "__main__":
    main(sys.argv[1])
