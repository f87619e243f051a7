"""The command line: `python -m benchmarks`, or `make bench ARGS="…"`.

Exit status: 0; 1 if one of our own locks had two holders; 2 for invalid arguments; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from benchmarks import machine, runner
from benchmarks.contender import Contender, all_contenders, versions_before
from benchmarks.measure import FULL, QUICK, all_measures
from benchmarks.plan import Case, Group, make_plan
from benchmarks.publish import merged, publish, published
from benchmarks.report import Report
from benchmarks.results import Record
from benchmarks.schedule import Schedule
from benchmarks.servers import missing
from benchmarks.table import number

MINUTES = 27  # of a full run
README = os.path.join(runner.ROOT, "README.md")
PUBLISHED = os.path.join(runner.ROOT, "docs", "benchmarks")
RESULTS = os.path.join(runner.ROOT, "benchmarks", "results")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected cases, and return the exit status."""
    arguments = _parse(argv)
    effort = QUICK if arguments.quick else FULL
    if arguments.rounds is not None:
        number = arguments.rounds
        effort = effort._replace(rounds=number, contended_rounds=number, long_rounds=number)
    contenders = _with_available_server(all_contenders())
    if arguments.before is not None:
        contenders += versions_before(contenders, os.path.join(os.path.abspath(arguments.before), "src"))
    plan = make_plan(all_measures(), contenders, effort, arguments.only, whole_tables=arguments.publish)
    if arguments.list:
        _list(plan)
        return 0
    if not plan:
        print("benchmarks: no case matches; see --list", file=sys.stderr)
        return 2

    described = machine.describe(arguments.cores, arguments.folder, contenders)
    is_limited = arguments.rounds is None and not arguments.quick
    schedule = Schedule(plan, arguments.minutes * 60 if is_limited else None)
    progress = _Progress(plan, schedule)
    print(f"benchmarks: about {schedule.estimated / 60:.0f} minutes on a machine that is not busy", file=sys.stderr)
    usual = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # handled like Ctrl-C, so that everything is cleaned up
    try:
        outcomes = runner.run(
            plan,
            cores=arguments.cores,
            folder=arguments.folder,
            before=progress.before,
            after=progress.after,
            schedule=schedule,
        )
    except KeyboardInterrupt:
        print("\nbenchmarks: interrupted; nothing was written", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, usual)

    report = Report(described, effort, contenders, outcomes)
    print(report.to_text(color=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    report.write(arguments.out)
    print(f"benchmarks: {progress.elapsed()}; written to {os.path.relpath(arguments.out)}", file=sys.stderr)
    broken = [record.case.name for outcome in outcomes for record in outcome.broken if record.case.contender.ours]
    if broken:
        print(f"benchmarks: BROKEN, two held the lock at once: {', '.join(broken)}", file=sys.stderr)
        return 1
    if arguments.publish:
        every = all_contenders()  # also those without a server here, which an earlier run has measured
        earlier = published(PUBLISHED, all_measures(), every) if arguments.only else []
        order = make_plan(all_measures(), every, FULL)
        report = Report(described, effort, contenders, merged(earlier, outcomes, order))
        publish(report, PUBLISHED, README)
        print(f"benchmarks: published to {os.path.relpath(PUBLISHED)}", file=sys.stderr)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description="How fast holdfast is, with its peers beside it in the same run. docs/benchmarks.md explains.",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="cases whose name, or a part of it, begins so (see --list; * and ? as in a shell); may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="about six minutes: one short round, for a first look")
    parser.add_argument(
        "--minutes",
        type=_positive,
        default=MINUTES,
        metavar="N",
        help=f"duration of a full run, default {MINUTES}: tables have fewer rounds if all of them would take longer",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="so many rounds, however long they take")
    parser.add_argument(
        "--before",
        metavar="FOLDER",
        help="a checkout of another version, whose locks are measured in the same rounds",
    )
    parser.add_argument("--list", action="store_true", help="list the cases and run nothing")
    parser.add_argument("--out", default=RESULTS, metavar="FOLDER", help="where the results go")
    parser.add_argument("--folder", metavar="FOLDER", help="where the locks are kept (default: a temporary folder)")
    parser.add_argument("--cores", type=_cores, default=sorted(os.sched_getaffinity(0)), metavar="0,1", help="to use")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/benchmarks too; with --only, whole tables of it"
    )
    arguments = parser.parse_args(argv)
    if arguments.publish and (arguments.quick or arguments.before):
        parser.error("--publish is for full rounds: without --quick and --before")
    if arguments.before is not None and not os.path.isdir(os.path.join(arguments.before, "src", "holdfast")):
        parser.error(f"--before {arguments.before}: there is no src/holdfast in it")
    if arguments.folder is not None and not os.path.isdir(arguments.folder):
        parser.error(f"--folder {arguments.folder}: there is no such folder")
    return arguments


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def _cores(text: str) -> list[int]:
    allowed = os.sched_getaffinity(0)
    chosen = [int(part) if part.isdecimal() else -1 for part in text.split(",")]
    if not set(chosen) <= allowed:
        raise argparse.ArgumentTypeError(f"must be some of {','.join(map(str, sorted(allowed)))}, not {text!r}")
    return chosen


def _with_available_server(contenders: Sequence[Contender]) -> list[Contender]:
    """Return the contenders whose server is on this machine; print which are missing."""
    servers = {contender.server.name: contender.server for contender in contenders if contender.server is not None}
    absent = missing(list(servers.values()))
    for server in absent:
        print(f"benchmarks: no {server.program} on this machine: cases on {server.name} are omitted", file=sys.stderr)
    names = {server.name for server in absent}
    return [contender for contender in contenders if contender.server is None or contender.server.name not in names]


def _list(plan: Sequence[Group]) -> None:
    for group in plan:
        for case in group.cases:
            print(f"{case.name}  ({case.problem})" if case.problem else case.name)


class _Progress:
    """Lines on stderr. On a terminal the line of the current case is redrawn in place."""

    def __init__(self, plan: Sequence[Group], schedule: Schedule) -> None:
        self._tables = {case.name: number for number, group in enumerate(plan, 1) for case in group.cases}
        self._total = len(plan)
        self._schedule = schedule
        self._rewrites = sys.stderr.isatty()

    def elapsed(self) -> str:
        return _clock(self._schedule.elapsed)

    def before(self, case: Case, round_number: int, rounds: int, _: Record) -> None:
        if self._rewrites:
            print(f"{self._line(case, round_number, rounds)} …", end="", file=sys.stderr, flush=True)

    def after(self, case: Case, round_number: int, rounds: int, record: Record) -> None:
        last, column = record.rounds[-1], case.measure.columns[0]
        if last is None:
            result = f"failed: {record.problem}"
        elif last.get("overlaps", 0) > 0:
            result = "BROKEN"
        else:
            result = f"{number(last[column.key] * column.scale)} ({column.heading.replace(chr(10), ' ')})"
        clear = "\r\x1b[K" if self._rewrites else ""
        print(f"{clear}{self._line(case, round_number, rounds)} {result}", file=sys.stderr, flush=True)

    def _line(self, case: Case, round_number: int, rounds: int) -> str:
        left = _clock(self._schedule.left)
        table = f"table {self._tables[case.name]}/{self._total}"
        return f"{self.elapsed()}, {left} left  {table}  round {round_number}/{rounds}  {case.name}"


def _clock(seconds: float) -> str:
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # `… --list | head`; Python flushes again at exit: discard that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    sys.exit(status)
