"""The kinds of searches, each with its report and exit status."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from typing import Any

from holdfast.cli import statuses
from holdfast.cli.interrupts import Interrupts
from holdfast.cli.terminal import Terminal
from holdfast.errors import ConfigurationError
from holdfast_lab.checking import Verdict, report, svg, timeline
from holdfast_lab.checking import history as h
from holdfast_lab.cli import SEEDS, reports, request
from holdfast_lab.cli.progress import Progress
from holdfast_lab.sim import exhaustive, redlock_configs
from holdfast_lab.sim import faults as faults_
from holdfast_lab.sim.cancellation import Cancellation, cancellations
from holdfast_lab.sim.replay import Replay, to_text
from holdfast_lab.sim.run import Plan, Run
from holdfast_lab.sim.run import run as run_world
from holdfast_lab.sim.search import Totals, search
from holdfast_lab.sim.servers.redlock.server import RedlockServer
from holdfast_lab.sim.servers.zookeeper.ensemble import ZookeeperServer
from holdfast_lab.sim.shrink import RUNS, Shrunk, shrink

_WIDTH_MAX = 120


class _Interrupted(Exception):
    """Raised to end shrinking after a signal."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
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
            arguments.parser.error("argument --faults: these worlds have their own faults")
        plan = request.plan_of(arguments)
        if arguments.exhaustive:
            if issubclass(plan.server_type, ZookeeperServer):
                arguments.parser.error(
                    "argument --exhaustive: an ensemble has too many states; use --seeds or --cancels"
                )
            is_redlock = issubclass(plan.server_type, RedlockServer)
            return session.search_fences(plan) if is_redlock else session.search_all(plan)
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
        """Search many seeds, and show the first that fails."""
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
        data = reports.as_data(plan, totals, seconds)
        if not arguments.json:
            print(*reports.summary_of(plan, totals, seconds, width=self._width), sep="\n")
        if totals.failing:
            seed = totals.failing[0].seed
            data["first"] = self._show_run(plan, run_world(plan, seed), ["--seed", str(seed)])
        elif not arguments.json and any((arguments.svg, arguments.history, arguments.save)):
            print("no world failed, so no file was written; use --seed S to write one")
        self._print_data(data)
        return self._status(is_ok=not totals.failing)

    def search_all(self, plan: Plan) -> int:
        """Search small worlds exhaustively, until one breaks a promise."""
        arguments, all_data = self._arguments, []
        for default in exhaustive.SIZES:
            size = default._replace(
                clients=arguments.clients or default.clients, rounds=arguments.rounds or default.rounds
            )
            size = size._replace(faults=0) if arguments.no_faults else size
            began = time.monotonic()
            with Progress() as progress:

                def check_interrupt(runs: int, states: int, progress: Progress = progress) -> bool:
                    progress.show("runs", runs, None, f"{states:,} states")
                    return self._interrupts.received is None

                searched = exhaustive.search_all(plan, size, progress=check_interrupt)
            data = reports.exhaustive_as_data(size, searched, time.monotonic() - began)
            if not arguments.json:
                print(*reports.exhaustive_summary(plan, size, searched, width=self._width), sep="\n")
            for failing in searched.failures[:1]:
                self._show_history(failing.history, failing.verdict, request.command_for(arguments, "--exhaustive"))
            all_data.append(data)
            if searched.failures or self._interrupts.received is not None:
                break
        self._print_data({"backend": plan.backend, "ok": all(data["ok"] for data in all_data), "worlds": all_data})
        return self._status(is_ok=all(data["ok"] for data in all_data))

    def search_fences(self, plan: Plan) -> int:
        """Search configurations of Redlock exhaustively, until one breaks the order of fences."""
        arguments, all_data = self._arguments, []
        if arguments.clients is not None or arguments.rounds is not None or arguments.no_faults:
            arguments.parser.error("argument --exhaustive: for redlock it always has two clients and all faults")
        for size in redlock_configs.SIZES:
            began = time.monotonic()
            with Progress() as progress:

                def check_interrupt(states: int, left: int, progress: Progress = progress) -> bool:
                    progress.show("states", states, None, f"{left:,} to follow")
                    return self._interrupts.received is None

                searched = redlock_configs.search_fences(plan, size, progress=check_interrupt)
            all_data.append(reports.fences_as_data(size, searched, time.monotonic() - began))
            if not arguments.json:
                print(*reports.fences_summary(plan, size, searched, width=self._width), sep="\n")
            if searched.broken is not None:
                if not arguments.json:
                    print("", *searched.path, "", f"Again: {request.command_for(arguments, '--exhaustive')}", sep="\n")
                break
            if self._interrupts.received is not None:
                break
        is_ok = all(data["ok"] for data in all_data)
        self._print_data({"backend": plan.backend, "ok": is_ok, "configs": all_data})
        return self._status(is_ok=is_ok)

    def cancel_everywhere(self, plan: Plan) -> int:
        """Cancel every call at every point; list the cases with a problem, and show the first."""
        tried: Counter[str] = Counter()
        wrong: list[Cancellation] = []
        with Progress() as progress:
            for result in cancellations(plan):
                tried[result.case.call] += 1
                if result.problem is not None:
                    wrong.append(result)
                progress.show("cancellations", tried.total(), None)
                if self._interrupts.received is not None:
                    break
        if not self._arguments.json:
            print(*reports.cancellation_summary(plan, tried, wrong, width=self._width), sep="\n")
        for result in wrong[:1]:
            self._show_history(result.history, result.verdict, request.command_for(self._arguments, "--cancels"))
        self._print_data(reports.cancellations_as_data(plan, tried, wrong))
        return self._status(is_ok=not wrong)

    def _show_history(self, history: list[h.Event], verdict: Verdict, again: str) -> None:
        """Show a world that has no seed."""
        if not self._arguments.json:
            shown = report(history, verdict, width=self._width) if verdict.violations else timeline(history)
            print("", shown, f"Again: {again}", sep="\n")
        self._write_pictures(history, verdict)

    def show(self, plan: Plan, ran: Run, again: list[str]) -> int:
        """Show one run, failing or not."""
        self._print_data({"backend": plan.backend, "ok": ran.failure is None, **self._show_run(plan, ran, again)})
        return self._status(is_ok=ran.failure is None)

    def _show_run(self, plan: Plan, ran: Run, again: list[str]) -> dict[str, Any]:
        """Show the run, shrunk if it failed; write the requested files; its data for JSON."""
        arguments, shrunk = self._arguments, None
        # A saved run is shrunk already.
        wants_shrinking = arguments.replay is None if arguments.shrink is None else arguments.shrink
        if ran.failure is not None and wants_shrinking:
            shrunk = self._shrunk(plan, ran)
        shown = ran if shrunk is None else shrunk.run
        command = request.command_for(arguments, *again)
        if not arguments.json:
            print("", reports.run_report(shown, width=self._width), sep="\n")
            if shrunk is not None:
                print(*reports.shrink_summary(shrunk, width=self._width), sep="\n")
            print(f"Again: {command}")
        self._write(plan, shown, shrunk)
        return {**reports.run_as_data(shown, shrunk), "again": command}

    def _shrunk(self, plan: Plan, ran: Run) -> Shrunk | None:
        with Progress() as progress:

            def check_interrupt(runs: int, best: Shrunk) -> None:
                if self._interrupts.received is not None:
                    raise _Interrupted
                progress.show("shrinking", runs, RUNS, f"{len(best.run.history):,} events left")

            try:
                return shrink(plan, ran, progress=check_interrupt)
            except _Interrupted:
                return None

    def _write(self, plan: Plan, shown: Run, shrunk: Shrunk | None) -> None:
        self._write_pictures(shown.history, shown.verdict)
        arguments = self._arguments
        if arguments.save is not None:
            replay = Replay(plan, shown.decisions) if shrunk is None else Replay(shrunk.plan, shrunk.decisions)
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


def _print_list(kind: str) -> None:
    if kind == "faults":
        print(*faults_.KINDS, sep="\n")
        return
    from holdfast_lab.sim.mutants import MUTANTS

    width = max(map(len, MUTANTS))
    for mutant in MUTANTS.values():
        print(f"{mutant.name:{width}}  {mutant.backend:8}  {mutant.mistake}")
