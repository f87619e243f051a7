"""The command: `python -m holdfast_lab.long_search`. `make sim` runs it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast import AcquireTimeout, ConfigurationError, HoldfastError, exit_on
from holdfast.cli import options, statuses, times
from holdfast_lab.cli import BACKENDS, WORKLOADS
from holdfast_lab.cli.progress import Progress
from holdfast_lab.cli.request import find_mutant
from holdfast_lab.long_search.ledger import Key, Record, Violation, open_ledger
from holdfast_lab.long_search.publish import publish
from holdfast_lab.long_search.search import LongSearch, Request, State
from holdfast_lab.long_search.tasks import command_of
from holdfast_lab.long_search.version import code_version
from holdfast_lab.sim.run import lack_of
from holdfast_lab.sim.workers import usable_cores
from holdfast_lab.sim.workload import WORKLOADS as WORKLOADS_BY_NAME

SEEDS = 10_000
_DESCRIPTION = """\
Search random worlds of all backends and workloads, all small worlds, and all
cancellations, and record the result in a ledger. A search that has ended early
continues where the ledger ends. Another version of the code starts again, and
the ledger keeps the results of both.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is one of `holdfast simulate`."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.publish is not None:
            publish(arguments.ledger, arguments.publish)
            return statuses.DONE
        exit_on(signal.SIGTERM)
        return _search(arguments)
    except AcquireTimeout as error:
        print(f"holdfast: another search writes the ledger {arguments.ledger}: {error}", file=sys.stderr)
        return statuses.BUSY
    except ConfigurationError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return statuses.USAGE
    except HoldfastError as error:
        print(f"holdfast: {error}; run the command again to continue", file=sys.stderr)
        return statuses.NOT_DONE
    except KeyboardInterrupt:
        print("holdfast: interrupted; run the command again to continue", file=sys.stderr)
        return statuses.of_signal(signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_lab.long_search",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="the ledger; made if it is missing")
    parser.add_argument(
        "--seeds",
        type=options.whole(1),
        default=SEEDS,
        metavar="N",
        help=f"worlds of each backend and workload, 0.3 N of redlock (default: {SEEDS})",
    )
    parser.add_argument("--first", type=options.whole(0), default=0, metavar="S", help="the first seed (default: 0)")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS, metavar="B", help="default: all")
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=("locks", "everything"),
        metavar="W",
        help="default: locks everything",
    )
    parser.add_argument("--mutant", metavar="M", default="", help="search code with this deliberate bug")
    parser.add_argument("--shards", type=options.whole(1), metavar="N", help="processes (default: one for each core)")
    parser.add_argument("--no-small", action="store_true", help="only random worlds")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first violation")
    parser.add_argument(
        "--publish",
        type=Path,
        metavar="FOLDER",
        help="do not search: add the ledger to search-ledger.jsonl in FOLDER, and update the tables of track-record.md",
    )
    return parser


def _search(arguments: argparse.Namespace) -> int:
    backends = [find_mutant(arguments.mutant).backend] if arguments.mutant else arguments.backends
    request = Request(
        code=code_version(),
        backends=backends,
        workloads=_supported(backends, arguments.workloads),
        seeds=arguments.seeds,
        shards=arguments.shards or usable_cores(),
        with_small=not arguments.no_small,
        stops_at_violation=not arguments.keep_going,
        mutant=arguments.mutant,
        first=arguments.first,
    )
    with open_ledger(arguments.ledger) as ledger:
        search = LongSearch(request, ledger)
        state = search.state
        print(f"code {request.code}: {state.worlds:,} of {state.of:,} worlds are in the ledger", flush=True)
        _print_violations(search.violations, "in the ledger: ")
        with Progress() as progress:

            def show(record: Record) -> None:
                if record.violations:
                    progress.clear()
                    _print_violations([(record.key, violation) for violation in record.violations])
                state = search.state
                progress.show("worlds", state.worlds, state.of, _details(state))

            search.run(show)
        for key in search.incomplete:
            print(f"NOT COMPLETE: {command_of(key, None)} exceeded its time, and is repeated by the next search")
        state = search.state
        print(
            f"code {request.code}: {state.worlds:,} of {state.of:,} worlds, {state.small} of {state.small_of} other "
            f"searches, {state.violations:,} violations"
        )
        return statuses.NOT_DONE if state.violations else statuses.DONE


def _supported(backends: Sequence[str], workloads: Sequence[str]) -> list[tuple[str, str]]:
    """The workloads that each backend supports; prints the others."""
    pairs = []
    for backend in backends:
        for workload in workloads:
            reason = lack_of(backend, WORKLOADS_BY_NAME[workload])
            if reason is None:
                pairs.append((backend, workload))
            else:
                print(f"{backend} does not support {workload}: {reason}")
    return pairs


def _details(state: State) -> str:
    left = state.seconds_left
    more = [f"{state.violations:,} violations"]
    if state.small < state.small_of:
        more.append(f"{state.small} of {state.small_of} other searches")
    if left is not None:
        more.append(f"{state.worlds_per_second:,.0f}/s, {times.long(left)} left")
    return ", ".join(more)


def _print_violations(violations: Sequence[tuple[Key, Violation]], where: str = "") -> None:
    for key, violation in violations:
        world = key.kind if violation.seed is None else f"seed {violation.seed}"
        print(f"VIOLATION {where}{key.backend}, {key.workload}, {world}: {violation.failure}")
        print(f"  again: {command_of(key, violation.seed)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
