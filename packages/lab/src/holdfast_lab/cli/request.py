"""From options to a plan, and from a plan to the command that repeats it."""

from __future__ import annotations

import argparse
import importlib
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError
from holdfast_lab.sim import faults as faults_
from holdfast_lab.sim.replay import Replay, from_text
from holdfast_lab.sim.run import Plan, lack_of
from holdfast_lab.sim.workload import WORKLOADS, Workload

if TYPE_CHECKING:
    from holdfast_lab.sim.mutants.base import Mutant


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that the options describe.

    Raises:
        ConfigurationError: a fault or mutant is unknown, or the store does not support the workload.
    """
    plan = Plan(backend=arguments.backend, workload=_workload_of(arguments), faults=faults_.ALL)
    if arguments.no_faults:
        plan = replace(plan, faults=faults_.CALM)
    elif arguments.faults is not None:
        unknown = sorted(set(arguments.faults) - set(faults_.KINDS))
        if unknown or not arguments.faults:
            raise ConfigurationError(f"no such fault: {', '.join(unknown)} (there are: {', '.join(faults_.KINDS)})")
        plan = replace(plan, faults=faults_.only(faults_.ALL, frozenset(arguments.faults)), enable=1.0)
    workload = plan.workload
    if arguments.clients is not None:
        workload = replace(workload, clients=arguments.clients)
    if arguments.rounds is not None:
        workload = replace(workload, rounds=arguments.rounds)
    plan = replace(plan, workload=workload)
    return plan if arguments.mutant is None else find_mutant(arguments.mutant).apply(plan)


def _workload_of(arguments: argparse.Namespace) -> Workload:
    workload = WORKLOADS[arguments.workload]
    reason = lack_of(arguments.backend, workload) if arguments.mutant is None else None
    if reason is not None:
        raise ConfigurationError(f"--workload {arguments.workload}: {arguments.backend} does not support it ({reason})")
    return workload


def replay_of(arguments: argparse.Namespace) -> Replay:
    """The saved run, with its mutant applied.

    Raises:
        ConfigurationError: the file cannot be read, or names a foreign mutant.
    """
    try:
        with open(arguments.replay, encoding="utf-8") as file:
            replay = from_text(file.read())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--replay {arguments.replay}: {error}") from error
    # A file from elsewhere must not choose the module that is imported.
    name = arguments.mutant or replay.mutant
    if arguments.mutant is None and name is not None and ":" in name:
        raise ConfigurationError(
            f"--replay {arguments.replay} was recorded with a mutant: add --mutant {name}, if you trust it"
        )
    return replay if name is None else replay._replace(plan=find_mutant(name).apply(replay.plan), mutant=name)


def find_mutant(name: str) -> Mutant:
    """A mutant of holdfast by name, or a foreign one as MODULE:NAME.

    Raises:
        ConfigurationError: there is no such mutant.
    """
    from holdfast_lab.sim.mutants import MUTANTS
    from holdfast_lab.sim.mutants.base import Mutant

    module, colon, attribute = name.partition(":")
    if colon:
        try:
            mutant = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"--mutant {name}: {error}") from error
        if not isinstance(mutant, Mutant):
            raise ConfigurationError(f"--mutant {name}: a {type(mutant).__name__} is not a Mutant")
        return mutant
    if name not in MUTANTS:
        raise ConfigurationError(f"no such mutant: {name!r} (`--mutant list` shows them)")
    return MUTANTS[name]


def command_for(arguments: argparse.Namespace, *more: str) -> str:
    """The command line that runs the same plan, with these further options."""
    command = ["holdfast", "simulate"]
    if arguments.mutant is not None:
        command += ["--mutant", arguments.mutant]
    elif arguments.replay is None:
        command += ["--backend", arguments.backend]
    if arguments.workload != "locks":
        command += ["--workload", arguments.workload]
    if arguments.no_faults:
        command.append("--no-faults")
    elif arguments.faults is not None:
        command += ["--faults", ",".join(arguments.faults)]
    for option in ("clients", "rounds"):
        if getattr(arguments, option) is not None:
            command += [f"--{option}", str(getattr(arguments, option))]
    return shlex.join([*command, *more])
