"""`holdfast init`: create or print the tables and functions of a database."""

from __future__ import annotations

import argparse
import importlib
import sys
from types import ModuleType

from holdfast import url as urls
from holdfast.cli import statuses
from holdfast.cli.help import STORE, Commands, add_command
from holdfast.default_url import default_url, naming_the_variable

_DESCRIPTION = """\
Create the tables and functions that holdfast needs in a database. Existing
objects and locks stay as they are. This is only needed if the user that
holdfast connects as may not create tables; otherwise the first use creates
them. For a store without tables this command does nothing.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "init",
        run=_run,
        summary="create the tables of a database, or print the SQL that does",
        description=_DESCRIPTION,
        examples={
            "holdfast init postgresql://db/shop": "create the tables and functions",
            "holdfast init --print postgresql://db/shop >locks.sql": "write the SQL to a file; no server is contacted",
        },
        results={statuses.DONE: "the tables and functions exist, or the SQL was printed", **STORE},
    )
    parser.add_argument("url", metavar="URL", nargs="?", help="the store (default: $HOLDFAST_URL)")
    parser.add_argument("--print", action="store_true", dest="prints", help="print the SQL and change nothing")


def _run(arguments: argparse.Namespace) -> int:
    with naming_the_variable(arguments.url):
        address = urls.parse(default_url() if arguments.url is None else arguments.url)
    scheme = urls.scheme_of(address.scheme)
    if not scheme.tables:
        print(f"holdfast: {address.scheme}:// needs no tables", file=sys.stderr)
    elif arguments.prints:
        sys.stdout.write(_module(scheme, "sql").ddl(address))
    else:
        if scheme.driver is not None:
            urls.require_driver(address.scheme, scheme.driver, scheme.extra)
        _module(scheme, "io.blocking").create_tables(address)
        print(f"{address.redacted}: the tables exist")
    return statuses.DONE


def _module(scheme: urls.Scheme, name: str) -> ModuleType:
    return importlib.import_module(f"{scheme.package}.{name}")
