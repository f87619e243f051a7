"""`holdfast break`: end leases by force. Exactly those that were shown, by their fences; never a successor."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli import options, statuses
from holdfast.cli.facts import fences
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.client import Client
    from holdfast.core.tickets import LockInfo, TicketInfo

_DESCRIPTION = """\
Show who holds the lock, ask, and end the leases that were shown, or the one
that --fence names. A lease that is granted meanwhile is not touched.

WARNING: the holder learns of it at its next renewal (every third of its ttl)
and may work on until then, beside the next holder. Make sure that it has
stopped, or that what the lock protects refuses the older fence.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "break",
        summary="end a lease by force, for a holder that does not",
        description=_DESCRIPTION,
        examples={
            "holdfast break nightly-report": "show, ask, break",
            "holdfast break pool --fence 1754989261000123": "one of several holders",
            "holdfast break nightly-report --yes": "do not ask, for scripts",
        },
        results={
            statuses.DONE: "every lease that was asked for is broken",
            statuses.NOT_DONE: "one was gone already, nobody holds the lock, or the answer was no",
            **STORE_READ,
        },
    )
    options.add_name(parser)
    parser.add_argument("--fence", type=options.whole(0), metavar="N", help="break only the lease with this fence")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can answer")
    options.add_url(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with options.open_to_read(arguments) as client:
        info = client.inspect(arguments.name)
        doomed = [holder for holder in info.holders if arguments.fence in (None, holder.fence)]
        if doomed:
            _tell(*_announcement(info, doomed))
            if not (arguments.yes or _agreed(len(doomed))):
                _tell("nothing was broken")
                doomed = []
        else:
            _tell(_nothing_to_break(info, arguments.fence))
        return _report(client, info.name, fences(doomed), as_json=arguments.json)


def _announcement(info: LockInfo, doomed: Sequence[TicketInfo]) -> list[str]:
    from holdfast.cli.facts import kind_words
    from holdfast.cli.show import describe_holder

    now = time.time()
    lines = [f"{shown(info.name)} ({kind_words(info)})"]
    for holder in doomed:
        lines += ["", *describe_holder(holder, info, now)]
    others = len(info.holders) - len(doomed)
    return [*lines, *([f"({others} more, not to be broken)"] if others else []), ""]


def _nothing_to_break(info: LockInfo, fence: int | None) -> str:
    if not info.holders:
        waiting = f"; {len(info.waiters)} wait for it" if info.waiters else ""
        return f"nobody holds {shown(info.name)}{waiting}: nothing to break"
    held = ", ".join(map(str, fences(info.holders)))
    return f"{shown(info.name)} is not held with fence {fence} (but with {held}): nothing was broken"


def _agreed(leases: int) -> bool:
    """Ask.

    Raises:
        ConfigurationError: nobody could answer.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        from holdfast.errors import ConfigurationError

        raise ConfigurationError("nobody can be asked here (no terminal), so nothing was broken: say --yes to go on")
    what = "this lease" if leases == 1 else f"these {leases} leases"
    question = f"break {what}? The holder may work on until its next renewal. [y/N] "
    try:
        print(question, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        _tell("")
        raise
    if not answer.endswith("\n"):
        _tell("")
    return answer.strip().lower() in ("y", "yes")


def _report(client: Client, name: str, doomed: Sequence[int], *, as_json: bool) -> int:
    """Break them one by one, saying what became of each, also if the store fails on the way."""
    broken: list[int] = []
    gone: list[int] = []
    try:
        for fence in doomed:
            is_broken = client.break_lock(name, fence)
            (broken if is_broken else gone).append(fence)
            if not as_json:
                happened = "broken" if is_broken else "it was already gone; nothing was broken"
                print(f"{shown(name)}, fence {fence}: {happened}")
    finally:
        if as_json:
            print(json.dumps({"lock": name, "broken": broken, "gone": gone}, indent=2))
    return statuses.DONE if broken and not gone else statuses.NOT_DONE


def _tell(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)
