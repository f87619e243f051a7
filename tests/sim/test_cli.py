"""`holdfast simulate` gives a wrong exit status or report, or writes invalid files."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from holdfast_lab.checking import history as h
from holdfast_lab.cli import searches
from holdfast_lab.sim import exhaustive, faults
from holdfast_lab.sim.cancellation import cancellations
from holdfast_lab.sim.exhaustive import Fate, Size
from holdfast_lab.sim.faults import ALL
from holdfast_lab.sim.run import Plan, run
from holdfast_lab.sim.shrink import shrink
from tests.sim.broken import FROM_THE_REPLY, OLD_GRANTS
from tests.support.commands import simulate
from tests.support.terminals import OnTerminal

SIMULATE = [sys.executable, "-m", "holdfast", "simulate"]


def on_terminal(*arguments: str) -> OnTerminal:
    return OnTerminal([*SIMULATE, *arguments], {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"})


def test_a_search_without_failures_prints_counts() -> None:
    result = simulate("--backend", "memory", "--seeds", "20")

    # On a busy machine the search takes long enough to report its progress.
    errors = [line for line in result.errors.splitlines() if not line.startswith("worlds: ")]
    assert (result.status, errors) == (0, [])
    assert result.out.startswith("memory: every promise kept in 20 worlds\n")
    for word in ("steps/s", "grants", "faults: ", "kept: mutual exclusion, growing fences"):
        assert word in result.out


def test_json_does_not_depend_on_the_number_of_processes() -> None:
    first, second = (simulate("--seeds", "30", "--first", "7", "--json", jobs=jobs).json for jobs in (1, 2))

    for data in (first, second):
        assert data.pop("seconds") > 0
        assert data.pop("steps_per_second") > 0
    assert first == second
    assert (first["ok"], first["worlds"], first["failing"]) == (True, 30, [])
    assert first["promises"]["mutual exclusion"] == {"tested": 30, "broken": 0}
    assert first["faults"]["pause"] > 0


def test_a_world_without_faults_has_none() -> None:
    data = simulate("--no-faults", "--seeds", "20", "--clients", "3", "--rounds", "2", "--json").json

    assert data["faults"] == {}
    assert data["losses"] <= data["grants"]
    assert data["promises"]["steady progress"] == {"tested": 20, "broken": 0}


def test_one_seed_is_shown_even_if_it_keeps_all_promises(tmp_path: Path) -> None:
    result = simulate(
        "--backend", "memory", "--seed", "4", "--svg", f"{tmp_path}/a.svg", "--history", f"{tmp_path}/a.jsonl"
    )

    assert result.status == 0
    assert "seconds │" in result.out
    assert "All promises kept" in result.out
    assert "Again: holdfast simulate --backend memory --seed 4\n" in result.out
    assert ET.parse(tmp_path / "a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  (our own)
    again = run(Plan(backend="memory", faults=ALL), 4)
    assert h.from_lines((tmp_path / "a.jsonl").read_text().splitlines()) == again.history


def test_a_broken_promise_is_shown_with_a_picture_and_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "shrink", functools.partial(shrink, runs=50))  # a complete shrink takes seconds
    wanted = ["--faults", "slow", "--seeds", "12", "--svg", f"{tmp_path}/a.svg"]
    result = simulate("--mutant", FROM_THE_REPLY.name, *wanted)

    assert result.status == 1
    assert result.out.startswith("memory: BROKEN in ")
    assert "\nBROKEN  " in result.out
    assert "\nShrunk in " in result.out
    assert f"\nAgain: holdfast simulate --mutant {FROM_THE_REPLY.name} --faults slow --seed " in result.out
    assert ET.parse(tmp_path / "a.svg").getroot() is not None  # noqa: S314  (our own)


def test_a_failing_world_is_not_shrunk_with_no_shrink() -> None:
    data = simulate("--mutant", FROM_THE_REPLY.name, "--faults", "slow", "--seeds", "12", "--no-shrink", "--json").json

    assert data["first"]["shrunk_in_runs"] is None
    assert data["first"]["events"] > 100


def test_calls_are_cancelled_at_every_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "cancellations", functools.partial(cancellations, every=7))  # all take seconds
    result = simulate("--cancels", "--json")

    assert result.status == 0
    assert result.json["ok"]
    assert sum(result.json["cancellations"].values()) > 25


def test_a_small_world_is_searched_completely() -> None:
    result = simulate("--exhaustive", "--no-faults", "--backend", "memory")

    assert result.status == 0
    assert "memory: every promise kept in all schedules of 2 clients" in result.out
    assert " ".join(result.out.split()).count("each; complete") == 2


def test_a_bug_that_needs_two_faults_is_found_by_the_exhaustive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    fates = (Fate.DONE, Fate.UNANSWERED, Fate.ANSWERED_LATE)  # all take ten times as long
    monkeypatch.setattr(exhaustive, "SIZES", (Size(fates=fates),))

    result = simulate("--exhaustive", "--mutant", OLD_GRANTS.name, "--json")

    assert result.status == 1
    (small,) = result.json["worlds"]
    assert small["faults"] == 2
    assert {run["failure"] for run in small["broken"]} >= {"mutual exclusion"}


def test_faults_and_mutants_are_listed() -> None:
    kinds, mutants = simulate("--faults", "list"), simulate("--mutant", "list")

    assert kinds.out.split() == list(faults.KINDS)
    assert (kinds.status, mutants.status) == (0, 0)
    assert any(line.startswith("fence-drawn-when-queued ") for line in mutants.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--faults", "earthquake"], "no such fault: earthquake"),
        (["--mutant", "x"], "no such mutant: 'x'"),
        (["--mutant", "json:loads"], "not a Mutant"),
        (["--mutant", "no.such:THING"], "No module named"),
        (["--seeds", "0"], "must be a whole number, 1 or more"),
        (["--clients", "17"], "from 1 to 16"),
        (["--seed", "1", "--seeds", "2"], "not allowed with"),
        (["--replay", "/nowhere"], "No such file"),
        (["--exhaustive", "--faults", "pause"], "their own faults"),
        (["--seed", "1", "--svg", "/nowhere/a.svg"], "cannot write"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], problem: str) -> None:
    result = simulate(*arguments)

    assert result.status == 2
    assert problem in result.errors


def test_a_replay_file_does_not_choose_the_module_that_is_imported(tmp_path: Path) -> None:
    saved = ["--save", f"{tmp_path}/a.replay", "--seed", "1"]
    simulate("--mutant", FROM_THE_REPLY.name, *saved)

    refused = simulate("--replay", f"{tmp_path}/a.replay")

    assert refused.status == 2
    assert f"add --mutant {FROM_THE_REPLY.name}, if you trust it" in refused.errors


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_prints_the_results_so_far(jobs: str) -> None:
    terminal = on_terminal("--seeds", "1000000", "--jobs", jobs)
    try:
        terminal.read_until("of 1,000,000")
        terminal.type("\x03")

        assert terminal.finish() == 130
        assert "every promise kept in " in terminal.output
        assert "Traceback" not in terminal.output
    finally:
        terminal.close()


def test_a_terminal_shows_a_bar_and_then_the_verdict() -> None:
    terminal = on_terminal("--backend", "memory", "--seeds", "30", "--jobs", "1")
    try:
        terminal.read_until("of 30")
        assert terminal.finish() == 0
        assert "█" in terminal.output
        assert "every promise kept in 30 worlds" in terminal.output
    finally:
        terminal.close()
