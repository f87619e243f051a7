"""The cost before the first lock: new interpreters, with and without the import."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks.contender import Contender
from benchmarks.figures import median
from benchmarks.measure import Column, Effort, Figures, Measure, Panel, Setting

COUNT = "\nprint(len(sys.modules))"


def run(contender: Contender, numbers: Mapping[str, float], location: str) -> Figures:
    """Run bare Python, the import, and a first lock in turn. Return medians and differences to bare Python."""
    programs = {
        "bare": "import sys",
        "import": f"import sys\n{contender.imports}",
        "first": f"import sys\n{contender.imports}\n{contender.first_use}",
    }

    def own(name: str) -> str:
        """Return a new folder for each run, so that each run creates its store. All runs use one server."""
        if contender.server is not None:
            return location
        folder = os.path.join(location, name)
        os.mkdir(folder)
        return folder

    modules = {name: _modules(code, own(name)) for name, code in programs.items()}  # creates the .pyc files
    took: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(int(numbers["interpreters"])):
        for name, code in programs.items():
            took[name].append(_seconds(code, own(f"{name}-{number}")))
    middle = {name: median(values) for name, values in took.items()}
    return {
        "bare": middle["bare"],
        "import": middle["import"] - middle["bare"],
        "first": middle["first"] - middle["bare"],
        "modules": modules["import"] - modules["bare"],
        "modules_first": modules["first"] - modules["bare"],
    }


def _seconds(code: str, location: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, location], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - started


def _modules(code: str, location: str) -> int:
    shown = subprocess.run([sys.executable, "-c", code + COUNT, location], check=True, capture_output=True, text=True)
    return int(shown.stdout)


def _settings(effort: Effort) -> list[Setting]:
    return [Setting("fresh", "a fresh interpreter each", {"interpreters": effort.imports})]


def _cannot(contender: Contender, _: Setting) -> str | None:
    return "as others of its package" if contender.first_use is None else None


MEASURE = Measure(
    name="imports",
    title="Start-up: the import and the first lock",
    explains=(
        "Milliseconds above bare Python, and modules loaded. first lock: a whole program that imports, opens, takes "
        "one lock, gives it back and ends. Less is better throughout."
    ),
    settings=_settings,
    run=run,
    cannot=_cannot,
    columns=(
        Column("import", "import\nms", scale=1e3),
        Column("modules", "import\nmodules", plain=True),
        Column("first", "first lock\nms", scale=1e3),
        Column("modules_first", "first lock\nmodules", plain=True),
        Column("bare", "bare Python\nms", scale=1e3),
    ),
    panels=(Panel("ms above bare Python: ● import ○ import and first lock", "import", "first", 1e3),),
    by_arena=False,
    rounds=lambda effort: min(effort.rounds, 2),  # each starts nine interpreters
)
