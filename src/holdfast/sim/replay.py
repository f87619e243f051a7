"""A run in a file: its plan and its tape, as JSON, for another day or another machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from holdfast.sim.faults import Faults
from holdfast.sim.run import SERVERS, Plan
from holdfast.sim.workload import Workload


class Tape(NamedTuple):
    """`run(plan, tape=numbers)`, where the plan may be that of a mutant."""

    plan: Plan
    numbers: Sequence[int]
    mutant: str | None = None


def to_text(tape: Tape) -> str:
    """The same for a file. What a mutant replaces is known by the mutant's name only."""
    plan = tape.plan
    content = {
        "backend": plan.backend,
        "mutant": tape.mutant,
        "enable": plan.enable,
        "faults": asdict(plan.faults),
        "workload": asdict(plan.workload),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    return "{" + ",\n ".join([*lines, f'"tape": {json.dumps(list(tape.numbers))}']) + "}\n"


def from_text(text: str) -> Tape:
    """What `to_text` wrote; its mutant is not applied yet.

    Raises:
        ValueError: it is something else; says what is wrong with it.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        workload = content["workload"]
        plan = Plan(
            backend=content["backend"],
            faults=Faults(**content["faults"]),
            enable=float(content["enable"]),
            workload=Workload(
                **{**workload, "kinds": tuple(workload["kinds"]), "uses": tuple(workload.get("uses", ()))}
            ),
        )
        numbers, mutant = [int(number) for number in content["tape"]], content["mutant"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a tape ({type(error).__name__}: {error})") from error
    if plan.backend not in SERVERS:
        raise ValueError(f"a tape of a backend that is not known here: {plan.backend!r}")
    return Tape(plan, numbers, mutant)
