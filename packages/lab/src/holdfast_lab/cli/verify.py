"""`holdfast verify URL`: run a lock on real servers under load and faults, and show which promises hold there."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from holdfast.cli import options, statuses
from holdfast.cli.help import SIGNALS, Commands, add_command
from holdfast.cli.lab import SUMMARIES
from holdfast.cli.text import escape
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast_lab.verify.faults import Command
    from holdfast_lab.verify.runner import Plan

NAME = "verify"
TTL_MIN, WORKERS_MAX = 0.5, 64
SECONDS, WORKERS, TTL = 60.0, 4, 2.0

_DESCRIPTION = """\
Run worker processes that contend for private locks on your own servers, while
workers are stopped and killed and connections are cut, delayed and lost. Then
check every promise that the backend declares. It needs no more rights on the
servers than a client, and uses locks with a random prefix. See docs/verify.md.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        NAME,
        run=_run,
        summary=SUMMARIES[NAME],
        description=_DESCRIPTION,
        examples={
            "holdfast verify redis://cache:6379/0": "one minute of load and faults",
            "holdfast verify URL --fault 'restart=docker restart redis'": "also with your own fault",
            "holdfast verify URL --only pause --report page.html": "one fault, with pictures of violations",
            "holdfast verify URL --adapter mylocks:Adapter": "the lock of another library",
        },
        results={
            statuses.DONE: "every exercised promise held",
            statuses.NOT_DONE: "a promise was broken",
            statuses.USAGE: "bad arguments, or a URL that cannot be used",
            statuses.UNAVAILABLE: "the run failed: the store is not available, or a worker died",
            **SIGNALS,
        },
    )
    parser.usage = "holdfast verify URL [options]"
    parser.add_argument("url", metavar="URL", help="the store, such as redis://cache:6379/0")
    parser.add_argument(
        "--seconds",
        type=options.seconds(minimum=1.0),
        default=SECONDS,
        metavar="S",
        help="duration of the load (default: 60)",
    )
    parser.add_argument(
        "--workers", type=options.whole(2, WORKERS_MAX), default=WORKERS, metavar="N", help="processes (default: 4)"
    )
    parser.add_argument(
        "--ttl",
        type=options.seconds(minimum=TTL_MIN),
        default=TTL,
        metavar="S",
        help="the ttl of the leases (default: 2); pauses last longer than this",
    )
    parser.add_argument(
        "--seed", type=options.whole(0), metavar="N", help="repeat the choices of the run with this seed"
    )
    parser.add_argument("--prefix", default="", metavar="P", help="the first part of the names (default: a random one)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FAULT",
        help="only this fault, built-in or of --fault; may be repeated; `list` shows all",
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="also run this shell command, during the load; may be repeated",
    )
    parser.add_argument(
        "--between", action="append", default=[], metavar="NAME=COMMAND", help="the same, while the load is stopped"
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="the lock to check (default: that of holdfast)",
    )
    parser.add_argument("--report", metavar="FILE.html", help="write a page with pictures of the violations")
    options.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast_lab.cli.progress import Progress
    from holdfast_lab.verify import judging, reports, runner
    from holdfast_lab.verify.faults import FAULTS
    from holdfast_lab.verify.processes import RunFailed

    if "list" in arguments.only:
        print("\n".join(f"{name:<16} {kind.meaning}" for name, kind in FAULTS.items()))
        return statuses.DONE
    if not hasattr(os, "fork"):
        raise ConfigurationError(f"verify stops, kills and forks processes, which {sys.platform} cannot do")
    plan = _plan(arguments)
    _check_writable(arguments.report)
    seconds = int(plan.seconds)
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        with Progress() as progress:
            evidence = runner.run(
                plan, lambda done, text: progress.show("verify", min(int(done), seconds), seconds, text)
            )
    except RunFailed as error:
        print("holdfast:", escape(str(error)), file=sys.stderr)
        return statuses.UNAVAILABLE
    finally:
        signal.signal(signal.SIGTERM, before)
    result = judging.judge(evidence)
    if arguments.report:
        with open(arguments.report, "w", encoding="utf-8") as file:
            file.write(reports.as_html(result))
    if arguments.json:
        print(json.dumps(reports.as_data(result), indent=2))
    else:
        print(reports.as_text(result, width=max(60, min(120, shutil.get_terminal_size().columns))), end="")
    if not result.is_exercised:
        return statuses.UNAVAILABLE
    return statuses.DONE if result.is_ok else statuses.NOT_DONE


def _ended(number: int, _: FrameType | None) -> NoReturn:
    """Ends the workers and frees the locks, as Ctrl-C does."""
    raise SystemExit(statuses.of_signal(number))


def _plan(arguments: argparse.Namespace) -> Plan:
    from holdfast_lab.verify import runner
    from holdfast_lab.verify.adapter import HOLDFAST
    from holdfast_lab.verify.faults import FAULTS

    commands = tuple(_command(option, text) for option in ("fault", "between") for text in getattr(arguments, option))
    names = [command.name for command in commands]
    unknown = [name for name in arguments.only if name not in FAULTS and name not in names]
    if unknown:
        raise ConfigurationError(f"--only {unknown[0]}: no such fault (known: {', '.join([*FAULTS, *names])})")
    taken = [name for name in names if name in FAULTS or names.count(name) > 1]
    if taken:
        raise ConfigurationError(f"--fault {taken[0]}=…: another fault has this name, choose another one")
    return runner.Plan(
        url=arguments.url,
        adapters=tuple(arguments.adapter) or HOLDFAST,
        seconds=arguments.seconds,
        workers=arguments.workers,
        ttl=arguments.ttl,
        seed=random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed,
        prefix=arguments.prefix,
        only=tuple(arguments.only),
        commands=commands,
    )


def _command(option: str, text: str) -> Command:
    from holdfast_lab.verify.faults import Command

    name, equals, line = text.partition("=")
    if not equals or not name.strip() or not line.strip():
        raise ConfigurationError(f"--{option} must be NAME=COMMAND, not {text!r}")
    return Command(name.strip(), line.strip(), during=option == "fault")


def _check_writable(path: str | None) -> None:
    """An error at the end of a run would waste it."""
    if path is None:
        return
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigurationError(f"--report {path}: {error.strerror}") from error
