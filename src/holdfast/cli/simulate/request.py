"""What was asked for: a plan, and the one command that asks for it again."""

from __future__ import annotations

import argparse
import importlib
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError
from holdfast.sim import faults as faults_
from holdfast.sim.replay import Replay, from_text
from holdfast.sim.run import SERVERS, Plan, lacks_of
from holdfast.sim.workload import WORKLOADS, Workload

if TYPE_CHECKING:
    from holdfast.sim.mutants.base import Mutant


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that the options describe.

    Raises:
        ConfigurationError: there is no such fault or mutant, or the store cannot do what the workload is about.
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
    lacks = lacks_of(SERVERS[arguments.backend]) if arguments.mutant is None and workload.uses else {}
    if workload.uses and all(name in lacks for name in workload.uses):
        reason = lacks[workload.uses[0]]
        raise ConfigurationError(f"--workload {arguments.workload}: {arguments.backend} has no such thing ({reason})")
    return workload


def replay_of(arguments: argparse.Namespace) -> Replay:
    """The saved run, with its mutant applied.

    Raises:
        ConfigurationError: it cannot be read, or names a mutant that is not ours.
    """
    try:
        with open(arguments.replay, encoding="utf-8") as file:
            replay = from_text(file.read())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--replay {arguments.replay}: {error}") from error
    # A file that somebody sent does not get to say which module is imported.
    name = arguments.mutant or replay.mutant
    if arguments.mutant is None and name is not None and ":" in name:
        raise ConfigurationError(
            f"--replay {arguments.replay} was recorded with a mutant: say --mutant {name}, if you trust it"
        )
    return replay if name is None else replay._replace(plan=find_mutant(name).apply(replay.plan), mutant=name)


def find_mutant(name: str) -> Mutant:
    """One of ours by its name, or somebody's own as MODULE:NAME.

    Raises:
        ConfigurationError: there is no such mutant.
    """
    from holdfast.sim.mutants import MUTANTS
    from holdfast.sim.mutants.base import Mutant

    module, colon, attribute = name.partition(":")
    if colon:
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"--mutant {name}: {error}") from error
        if not isinstance(found, Mutant):
            raise ConfigurationError(f"--mutant {name}: that is a {type(found).__name__}, no Mutant")
        return found
    if name not in MUTANTS:
        raise ConfigurationError(f"no such mutant: {name!r} (`--mutant list` shows them)")
    return MUTANTS[name]


def command_for(arguments: argparse.Namespace, *more: str) -> str:
    """The command line that runs the same plan, with these options for what to do with it."""
    words = ["holdfast", "simulate"]
    if arguments.mutant is not None:
        words += ["--mutant", arguments.mutant]
    elif arguments.replay is None:
        words += ["--backend", arguments.backend]
    if arguments.workload != "locks":
        words += ["--workload", arguments.workload]
    if arguments.no_faults:
        words.append("--no-faults")
    elif arguments.faults is not None:
        words += ["--faults", ",".join(arguments.faults)]
    for option in ("clients", "rounds"):
        if getattr(arguments, option) is not None:
            words += [f"--{option}", str(getattr(arguments, option))]
    return shlex.join([*words, *more])
