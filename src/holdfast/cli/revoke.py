"""`holdfast revoke`: ask holders to let go. Nothing is taken from them: those that listen decide what to do."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli import options, statuses
from holdfast.cli.facts import fences, who
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.client import Client
    from holdfast.core.tickets import LockInfo, TicketInfo

_DESCRIPTION = """\
Ask whoever holds the lock to let go, or the lease that --fence names; of
several holders, those with older fences too. A lease that is granted later is
not asked for.

The lease is not ended: its holder hears of it at its next renewal (after a
third of its ttl at most), if it listens, and decides what to do. Listening are
locks taken with revocable=True or on_revoke=, and `holdfast run --revocable`.
For the others there is `holdfast break`.
"""
_LOOK = 0.1  # seconds between two looks at whether a lease is over


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "revoke",
        summary="ask the holder of a lock to let go",
        description=_DESCRIPTION,
        examples={
            "holdfast revoke nightly-report": "ask, and say whether the holder listens",
            "holdfast revoke nightly-report --wait 60": "ask, and wait until it has let go",
            "holdfast revoke pool --fence 1754989261000123": "one of several holders, and those before it",
        },
        results={
            statuses.DONE: "every holder was asked and listens; with --wait: every one has let go",
            statuses.NOT_DONE: "nobody holds the lock, one does not listen, or has not let go in time",
            **STORE_READ,
        },
    )
    options.add_name(parser)
    parser.add_argument("--fence", type=options.whole(0), metavar="N", help="ask for the lease with this fence")
    parser.add_argument(
        "--wait", type=options.seconds(), metavar="S", help="wait until the leases are over, at most this long"
    )
    options.add_url(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with options.open_to_read(arguments) as client:
        info = client.inspect(arguments.name)
        asked = _to_ask(info, arguments.fence)
        if asked:
            client.request_revoke(info.name, max(fences(asked)))
        else:
            print(_nobody(info, arguments.fence), file=sys.stderr)
        if not arguments.json:
            print(*(_answer(info.name, holder) for holder in asked), sep="\n", end="\n" if asked else "")
        over = None if arguments.wait is None else _over(client, info.name, asked, arguments)
    if arguments.json:
        print(json.dumps({"lock": info.name, "asked": [_as_dict(holder, over) for holder in asked]}, indent=2))
    if over is not None:
        return statuses.DONE if asked and over.issuperset(fences(asked)) else statuses.NOT_DONE
    return statuses.DONE if asked and all(holder.revocable for holder in asked) else statuses.NOT_DONE


def _to_ask(info: LockInfo, fence: int | None) -> list[TicketInfo]:
    """Those that a request for this fence is for."""
    held = [holder for holder in info.holders if holder.fence]  # a program that gives no fences cannot be asked
    if fence is None:
        return held
    return [holder for holder in held if fence in fences(held) and (holder.fence or 0) <= fence]


def _nobody(info: LockInfo, fence: int | None) -> str:
    if not info.holders:
        waiting = f"; {len(info.waiters)} wait for it" if info.waiters else ""
        return f"nobody holds {shown(info.name)}{waiting}: nobody to ask"
    if fence is None:
        return f"{shown(info.name)} is held by {who(info.holders[0])}, which cannot be asked"
    held = ", ".join(map(str, fences(info.holders)))
    return f"{shown(info.name)} is not held with fence {fence} (but with {held}): nobody was asked"


def _answer(name: str, holder: TicketInfo) -> str:
    listens = "" if holder.revocable else ", but does not listen"
    return f"{shown(name)}, fence {holder.fence}: {who(holder)} was asked to let go{listens}"


def _over(client: Client, name: str, asked: Sequence[TicketInfo], arguments: argparse.Namespace) -> set[int]:
    """Wait for their leases to end; the fences of those that have."""
    over: set[int] = set()
    end = time.monotonic() + arguments.wait
    while True:
        left = set(fences(client.inspect(name).holders))
        for fence in dict.fromkeys(fences(asked)):
            if fence not in left and fence not in over:
                over.add(fence)
                if not arguments.json:
                    print(f"{shown(name)}, fence {fence}: over", flush=True)
        now = time.monotonic()
        if over.issuperset(fences(asked)) or now >= end:
            break
        time.sleep(min(_LOOK, end - now))
    for fence in sorted(set(fences(asked)) - over):
        print(f"{shown(name)}, fence {fence}: still held after {arguments.wait:g} s", file=sys.stderr)
    return over


def _as_dict(holder: TicketInfo, over: set[int] | None) -> dict[str, object]:
    return {
        "fence": holder.fence,
        "host": holder.host,
        "pid": holder.pid,
        "program": holder.program,
        "listens": holder.revocable,
        "over": None if over is None else holder.fence in over,
    }
