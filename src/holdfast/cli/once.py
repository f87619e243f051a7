"""`holdfast once`: show or forget the record of a key of `once`. It is forgotten by its fence, so never a later one."""

from __future__ import annotations

import argparse
import json
import sys
import time

from holdfast.cli import options, statuses
from holdfast.cli.break_lock import confirm
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.text import display_name, escape
from holdfast.core.once import OnceInfo

_DESCRIPTION = """\
Show the record of a key that a program runs once (`client.once` in Python, or
`holdfast run --once KEY`): whether its run is running, interrupted, done or
failed, where and since when, its fence and its remembered result. `interrupted`
means that its process died, or lost its lease, before the end was recorded.

`forget` shows it, asks for confirmation, and removes it: the next call runs
again. Before you forget an interrupted run, find out what it has done.

WARNING: a run that is still running goes on, and the next call may run at the
same time.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "once",
        run=_run,
        summary="show or forget the run of a key",
        description=_DESCRIPTION,
        examples={
            "holdfast once show charge:7": "its state, host, process, fence and result",
            "holdfast once forget charge:7": "show it, ask, forget it",
            "holdfast once forget charge:7 --fence 12 --yes": "only the run with this fence; do not ask",
        },
        results={
            statuses.DONE: "the key has a record; it is forgotten",
            statuses.NOT_DONE: "the key has no record, not with this fence, or the answer was no",
            **STORE_READ,
        },
    )
    parser.usage = "holdfast once [options] show|forget KEY"
    parser.add_argument("action", metavar="show|forget", choices=("show", "forget"), help="what to do")
    parser.add_argument("key", metavar="KEY", help="the key")
    parser.add_argument("--fence", type=options.whole(0), metavar="N", help="forget only the run with this fence")
    parser.add_argument("--yes", action="store_true", help="do not ask; required without a terminal")
    options.add_url(parser)
    options.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    is_forget = arguments.action == "forget"
    if not is_forget and (arguments.fence is not None or arguments.yes):
        arguments.parser.error("--fence and --yes are for forget")
    with options.open_existing(arguments) as client:
        info = client.once(arguments.key).inspect()
        if info is None or arguments.fence not in (None, info.fence):
            print(_missing(arguments.key, info), file=sys.stderr)
            return statuses.NOT_DONE
        if not is_forget:
            lines = [json.dumps(info._asdict(), indent=2)] if arguments.json else describe(info, time.time())
            print(*lines, sep="\n")
            return statuses.DONE
        print(*describe(info, time.time()), "", sep="\n", file=sys.stderr)
        question = "forget this run? The next call runs again. [y/N] "
        is_confirmed = arguments.yes or confirm(question, "nothing was forgotten")
        is_forgotten = is_confirmed and client.forget(info.key, fence=info.fence)
    if arguments.json:
        print(json.dumps({"key": info.key, "fence": info.fence, "forgotten": is_forgotten}, indent=2))
    else:
        print(f"{display_name(info.key)}, fence {info.fence}: {'forgotten' if is_forgotten else 'not forgotten'}")
    return statuses.DONE if is_forgotten else statuses.NOT_DONE


def describe(info: OnceInfo, now: float) -> list[str]:
    """Return one line per property of the record."""
    from holdfast.cli.times import local_time, long

    facts = [
        ("state", info.state),
        ("run by", f"{escape(info.host)}/{info.pid}"),
        ("since", f"{local_time(info.since)} ({long(max(0.0, now - info.since))} ago)"),
        ("fence", str(info.fence)),
    ]
    if info.at is not None:
        facts.append(("ended", local_time(info.at)))
    if info.error:
        facts.append(("error", escape(info.error)))
    if info.value is not None:
        facts.append(("result", escape(json.dumps(info.value, ensure_ascii=False))))
    return [display_name(info.key), "", *(f"{fact:<16}{value}" for fact, value in facts)]


def _missing(key: str, info: OnceInfo | None) -> str:
    if info is None:
        return f"{display_name(key)} has no record"
    return f"{display_name(key)} has a record with fence {info.fence}, and is not forgotten"
