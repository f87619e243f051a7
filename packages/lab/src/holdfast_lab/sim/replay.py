"""A saved run: its plan and its decisions as JSON, to repeat it later or on another machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from holdfast_lab.sim.faults import Faults
from holdfast_lab.sim.run import SERVERS, Plan
from holdfast_lab.sim.workload import Workload


class Replay(NamedTuple):
    """Arguments for `run(plan, decisions=decisions)`. The plan may be the plan of a mutant."""

    plan: Plan
    decisions: Sequence[int]
    mutant: str | None = None


def to_text(replay: Replay) -> str:
    """The replay as JSON. The classes that a mutant replaces are not stored, only its name."""
    plan = replay.plan
    content = {
        "backend": plan.backend,
        "mutant": replay.mutant,
        "enable": plan.enable,
        "faults": asdict(plan.faults),
        "workload": asdict(plan.workload),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    return "{" + ",\n ".join([*lines, f'"decisions": {json.dumps(list(replay.decisions))}']) + "}\n"


def from_text(text: str) -> Replay:
    """Parse the output of `to_text`. The mutant is not applied yet.

    Raises:
        ValueError: the text is not a replay; the message has the reason.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        workload = content["workload"]
        plan = Plan(
            backend=content["backend"],
            faults=Faults(**content["faults"]),
            enable=float(content["enable"]),
            workload=Workload(
                **{**workload, "kinds": tuple(workload["kinds"]), "primitives": tuple(workload["primitives"])}
            ),
        )
        decisions, mutant = [int(number) for number in content["decisions"]], content["mutant"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a saved run ({type(error).__name__}: {error})") from error
    if plan.backend not in SERVERS:
        raise ValueError(f"a saved run of an unknown backend: {plan.backend!r}")
    return Replay(plan, decisions, mutant)
