"""`holdfast simulate`: search for the schedule that breaks a promise, in virtual time.

request   options -> plan, and the command that repeats a run
searches  many seeds, one seed, a saved run, exhaustive search, every cancellation
reports   results, as text and as JSON
progress  the progress bar

`holdfast verify` is in verify.py.
"""

from __future__ import annotations

import argparse

from holdfast.cli import options, statuses
from holdfast.cli.help import SIGNALS, Commands, add_command
from holdfast.cli.lab import SUMMARIES

NAME = "simulate"
SEEDS = 1000
CLIENTS_MAX = 16
BACKENDS = (
    "memory",
    "sqlite",
    "redis",
    "redis-local",
    "redis-setnx",
    "redis-getset",
    "redlock",
    "postgresql",
    "postgresql-local",
    "postgresql-pooler",
    "postgresql-advisory",
    "mysql",
    "mysql-local",
    "mysql-row",
    "mysql-version",
    "memcached",
    "etcd",
    "etcd-key",
    "zookeeper",
    "nats",
)
WORKLOADS = (
    "locks",
    "free",
    "lock_all",
    "election",
    "once_per",
    "once",
    "lock_delay",
    "revoke",
    "owner",
    "detect_deadlocks",
    "renew(ttl)",
    "min_hold",
    "transfer",
    "callers",
    "free_callers",
    "brief_callers",
    "callers_renew",
    "everything",
)

_DESCRIPTION = """\
Run the engine and the protocol of a backend in simulated worlds, where
messages get lost, processes pause and die, and stores lose data, and check
every promise. The same seed gives the same world. A world that breaks a promise
is shrunk to a short one and shown, with the command that repeats it. See
docs/simulation.md.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        NAME,
        run=_run,
        summary=SUMMARIES[NAME],
        description=_DESCRIPTION,
        examples={
            "holdfast simulate --seeds 10000": "ten thousand worlds on all cores",
            "holdfast simulate --seed 7": "the timeline of one of them",
            "holdfast simulate --faults pause,lose_reply": "only these faults, in every world",
            "holdfast simulate --workload lock_all": "also several locks at once",
            "holdfast simulate --mutant list": "deliberate bugs that must be found",
        },
        results={
            statuses.DONE: "every promise that was tested was kept",
            statuses.NOT_DONE: "a promise was broken",
            statuses.USAGE: "bad arguments",
            **SIGNALS,
        },
    )
    parser.usage = "holdfast simulate [options]"
    which = parser.add_argument_group("which worlds").add_mutually_exclusive_group()
    which.add_argument("--seeds", type=options.whole(1), metavar="N", help=f"number of worlds (default: {SEEDS})")
    which.add_argument("--seed", type=options.whole(0), metavar="S", help="run only this seed, and show its timeline")
    which.add_argument("--replay", metavar="FILE", help="repeat the run that --save wrote")
    which.add_argument("--tape", dest="replay", help=argparse.SUPPRESS)  # the former name of --replay
    which.add_argument(
        "--exhaustive",
        action="store_true",
        help="every schedule of a small world; for redlock, of a small model of its fences",
    )
    which.add_argument("--cancels", action="store_true", help="cancel each call at each point where it waits")
    parser.add_argument("--first", type=options.whole(0), default=0, metavar="S", help="the first seed (default: 0)")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="sqlite",
        metavar="B",
        help=f"{', '.join(BACKENDS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--workload",
        choices=WORKLOADS,
        default="locks",
        metavar="W",
        help=f"calls of the clients: {', '.join(WORKLOADS)} (default: %(default)s)",
    )
    parser.add_argument("--mutant", metavar="M", help="use this deliberate bug; `list` shows all")
    faults = parser.add_mutually_exclusive_group()
    faults.add_argument("--faults", type=_words, metavar="KIND,KIND", help="only these faults; `list` shows all")
    faults.add_argument("--no-faults", action="store_true", help="no faults")
    parser.add_argument("--clients", type=options.whole(1, CLIENTS_MAX), metavar="N", help="clients in each world")
    parser.add_argument("--rounds", type=options.whole(1), metavar="N", help="locks that each client acquires")
    parser.add_argument("--jobs", type=options.whole(1), metavar="N", help="processes (default: one for each core)")
    parser.add_argument(
        "--shrink",
        action=argparse.BooleanOptionalAction,
        help="shrink a failing world (default, except for --replay)",
    )
    parser.add_argument("--svg", metavar="FILE", help="draw the world that is shown")
    parser.add_argument("--history", metavar="FILE", help="write its events, one JSON object per line")
    parser.add_argument("--save", metavar="FILE", help="save the run for --replay")
    options.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast_lab.cli import searches

    return searches.run(arguments)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
