"""The ways to search, each to its verdict."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from typing import Any

from holdfast.checking import Verdict, report, svg, timeline
from holdfast.checking import history as h
from holdfast.cli import statuses
from holdfast.cli.interrupts import Interrupts
from holdfast.cli.simulate import SEEDS, request, words
from holdfast.cli.simulate.progress import Progress
from holdfast.cli.terminal import Terminal
from holdfast.errors import ConfigurationError
from holdfast.sim import exhaustive, redlock_configs
from holdfast.sim import faults as faults_
from holdfast.sim.cancellation import Cancellation, cancellations
from holdfast.sim.replay import Replay, to_text
from holdfast.sim.run import Plan, Run
from holdfast.sim.run import run as run_world
from holdfast.sim.search import Totals, search
from holdfast.sim.servers.redlock.server import RedlockServer
from holdfast.sim.servers.zookeeper.ensemble import ZookeeperServer
from holdfast.sim.shrink import RUNS, Shrunk, shrink

_WIDTH_MAX = 120


class _Interrupted(Exception):
    """Enough."""


def run(arguments: argparse.Namespace) -> int:
    """What was asked for."""
    if arguments.mutant == "list" or arguments.faults == ["list"]:
        _print_list("mutants" if arguments.mutant == "list" else "faults")
        return statuses.DONE
    with Interrupts() as interrupts:
        session = _Session(arguments, interrupts)
        if arguments.replay is not None:
            replay = request.replay_of(arguments)
            ran = run_world(replay.plan, decisions=replay.decisions)
            return session.show(replay.plan, ran, ["--replay", arguments.replay])
        if (arguments.exhaustive or arguments.cancels) and arguments.faults is not None:
            arguments.parser.error("argument --faults: these worlds have faults of their own")
        plan = request.plan_of(arguments)
        if arguments.exhaustive:
            if issubclass(plan.server_type, ZookeeperServer):
                arguments.parser.error(
                    "argument --exhaustive: an ensemble has too many states; use --seeds or --cancels"
                )
            is_council = issubclass(plan.server_type, RedlockServer)
            return session.search_fences(plan) if is_council else session.search_all(plan)
        if arguments.cancels:
            return session.cancel_everywhere(plan)
        if arguments.seed is not None:
            return session.show(plan, run_world(plan, arguments.seed), ["--seed", str(arguments.seed)])
        return session.search(plan)


class _Session:
    """One call of the command."""

    def __init__(self, arguments: argparse.Namespace, interrupts: Interrupts) -> None:
        self._arguments = arguments
        self._interrupts = interrupts
        self._width = min(Terminal.of(sys.stdout).columns, _WIDTH_MAX)

    def search(self, plan: Plan) -> int:
        """Many seeds; the first that fails is shown."""
        arguments, totals = self._arguments, Totals()
        count = SEEDS if arguments.seeds is None else arguments.seeds
        began = time.monotonic()
        outcomes = search(plan, range(arguments.first, arguments.first + count), jobs=arguments.jobs)
        with Progress() as progress:
            for outcome in outcomes:
                totals.add(outcome)
                progress.show("worlds", totals.worlds, count, f"{len(totals.failing):,} failing")
                if self._interrupts.received is not None:
                    break
        outcomes.close()
        seconds = time.monotonic() - began
        data = words.as_data(plan, totals, seconds)
        if not arguments.json:
            print(*words.verdict_of(plan, totals, seconds, width=self._width), sep="\n")
        if totals.failing:
            seed = totals.failing[0].seed
            data["first"] = self._story(plan, run_world(plan, seed), ["--seed", str(seed)])
        elif not arguments.json and any((arguments.svg, arguments.history, arguments.save)):
            print("no world failed, so none was written; --seed S writes any")
        self._print_data(data)
        return self._status(is_ok=not totals.failing)

    def search_all(self, plan: Plan) -> int:
        """Small worlds, one after the other, until one breaks a promise."""
        arguments, all_data = self._arguments, []
        for usual in exhaustive.SIZES:
            size = usual._replace(clients=arguments.clients or usual.clients, rounds=arguments.rounds or usual.rounds)
            size = size._replace(faults=0) if arguments.no_faults else size
            began = time.monotonic()
            with Progress() as progress:

                def look(runs: int, states: int, progress: Progress = progress) -> bool:
                    progress.show("runs", runs, None, f"{states:,} states")
                    return self._interrupts.received is None

                searched = exhaustive.search_all(plan, size, progress=look)
            data = words.exhaustive_as_data(size, searched, time.monotonic() - began)
            if not arguments.json:
                print(*words.exhaustive_words(plan, size, searched, width=self._width), sep="\n")
            for found in searched.found[:1]:
                self._tell(found.history, found.verdict, request.command_for(arguments, "--exhaustive"))
            all_data.append(data)
            if searched.found or self._interrupts.received is not None:
                break
        self._print_data({"backend": plan.backend, "ok": all(data["ok"] for data in all_data), "worlds": all_data})
        return self._status(is_ok=all(data["ok"] for data in all_data))

    def search_fences(self, plan: Plan) -> int:
        """Councils, one after the other, until one breaks the order of fences."""
        arguments, all_data = self._arguments, []
        if arguments.clients is not None or arguments.rounds is not None or arguments.no_faults:
            arguments.parser.error("argument --exhaustive: of redlock, always two clients, and all that can go wrong")
        for size in redlock_configs.SIZES:
            began = time.monotonic()
            with Progress() as progress:

                def look(states: int, left: int, progress: Progress = progress) -> bool:
                    progress.show("states", states, None, f"{left:,} to follow")
                    return self._interrupts.received is None

                searched = redlock_configs.search_fences(plan, size, progress=look)
            all_data.append(words.council_as_data(size, searched, time.monotonic() - began))
            if not arguments.json:
                print(*words.council_words(plan, size, searched, width=self._width), sep="\n")
            if searched.broken is not None:
                if not arguments.json:
                    print("", *searched.story, "", f"Again: {request.command_for(arguments, '--exhaustive')}", sep="\n")
                break
            if self._interrupts.received is not None:
                break
        is_ok = all(data["ok"] for data in all_data)
        self._print_data({"backend": plan.backend, "ok": is_ok, "councils": all_data})
        return self._status(is_ok=is_ok)

    def cancel_everywhere(self, plan: Plan) -> int:
        """Every call, cancelled in every place; those that left something behind are listed, the first is shown."""
        tried: Counter[str] = Counter()
        wrong: list[Cancellation] = []
        with Progress() as progress:
            for one in cancellations(plan):
                tried[one.case.call] += 1
                if one.problem is not None:
                    wrong.append(one)
                progress.show("cancellations", tried.total(), None)
                if self._interrupts.received is not None:
                    break
        if not self._arguments.json:
            print(*words.cancel_words(plan, tried, wrong, width=self._width), sep="\n")
        for one in wrong[:1]:
            self._tell(one.history, one.verdict, request.command_for(self._arguments, "--cancels"))
        self._print_data(words.cancels_as_data(plan, tried, wrong))
        return self._status(is_ok=not wrong)

    def _tell(self, history: list[h.Event], verdict: Verdict, again: str) -> None:
        """A world that was not drawn from a seed."""
        if not self._arguments.json:
            told = report(history, verdict, width=self._width) if verdict.violations else timeline(history)
            print("", told, f"Again: {again}", sep="\n")
        self._write_pictures(history, verdict)

    def show(self, plan: Plan, ran: Run, again: list[str]) -> int:
        """One run, whatever came of it."""
        self._print_data({"backend": plan.backend, "ok": ran.failure is None, **self._story(plan, ran, again)})
        return self._status(is_ok=ran.failure is None)

    def _story(self, plan: Plan, ran: Run, again: list[str]) -> dict[str, Any]:
        """Tell it, shrunk if it failed; write what was to be written."""
        arguments, shrunk = self._arguments, None
        wants_it = (
            arguments.replay is None if arguments.shrink is None else arguments.shrink
        )  # a saved run was shrunk before
        if ran.failure is not None and wants_it:
            shrunk = self._shrunk(plan, ran)
        told = ran if shrunk is None else shrunk.run
        command = request.command_for(arguments, *again)
        if not arguments.json:
            print("", words.story_of(told, width=self._width), sep="\n")
            if shrunk is not None:
                print(*words.shrunk_words(shrunk, width=self._width), sep="\n")
            print(f"Again: {command}")
        self._write(plan, told, shrunk)
        return {**words.run_as_data(told, shrunk), "again": command}

    def _shrunk(self, plan: Plan, ran: Run) -> Shrunk | None:
        with Progress() as progress:

            def look(runs: int, best: Shrunk) -> None:
                if self._interrupts.received is not None:
                    raise _Interrupted
                progress.show("shrinking", runs, RUNS, f"{len(best.run.history):,} events left")

            try:
                return shrink(plan, ran, progress=look)
            except _Interrupted:
                return None

    def _write(self, plan: Plan, told: Run, shrunk: Shrunk | None) -> None:
        self._write_pictures(told.history, told.verdict)
        arguments = self._arguments
        if arguments.save is not None:
            replay = Replay(plan, told.decisions) if shrunk is None else Replay(shrunk.plan, shrunk.decisions)
            _write_file(arguments.save, to_text(replay._replace(mutant=arguments.mutant)))

    def _write_pictures(self, history: list[h.Event], verdict: Verdict) -> None:
        arguments = self._arguments
        if arguments.svg is not None:
            _write_file(arguments.svg, svg(history, verdict.gravest))
        if arguments.history is not None:
            _write_file(arguments.history, "".join(f"{line}\n" for line in h.to_lines(history)))

    def _print_data(self, data: dict[str, Any]) -> None:
        if self._arguments.json:
            print(json.dumps(data, indent=2))

    def _status(self, *, is_ok: bool) -> int:
        return self._interrupts.status or (statuses.DONE if is_ok else statuses.NOT_DONE)


def _write_file(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error}") from error


def _print_list(what: str) -> None:
    if what == "faults":
        print(*faults_.KINDS, sep="\n")
        return
    from holdfast.sim.mutants import MUTANTS

    width = max(map(len, MUTANTS))
    for mutant in MUTANTS.values():
        print(f"{mutant.name:{width}}  {mutant.backend:8}  {mutant.mistake}")
