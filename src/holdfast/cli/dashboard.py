"""`holdfast dashboard`: show the locks in a browser."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from holdfast.cli import options, statuses
from holdfast.cli.help import SIGNALS, STORE_READ, Commands, add_command
from holdfast.cli.text import escape
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    import socket

PORT = 4653

_DESCRIPTION = """\
Serve a page with the locks, live: holders, waiters, the queue and the holders
of one lock over time, the wait-for graph with its deadlocks, the guarantees
and warnings of the store, and JSON at /api/locks.

The page is for this machine only, and for browsers that open the printed
address, which contains a token. With --token-file, --host can be an address of
the network; use a proxy with TLS there, because the token is a password.

The page is read-only. With --allow-break it can break a lease, after the fence
was typed, and request its release; both are logged.

The store is read while a page is open, twice a second at most, and once for
all pages. `pip install 'holdfast[dashboard]'` installs the server.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "dashboard",
        run=_run,
        summary="show the locks in a browser",
        description=_DESCRIPTION,
        examples={
            "holdfast dashboard": "on this machine; open the address that it prints",
            "holdfast dashboard --allow-break": "leases can be broken",
            "holdfast dashboard --host 10.0.0.5 --token-file FILE": "in a network",
        },
        results={**STORE_READ, **SIGNALS},
    )
    parser.add_argument(
        "--port",
        type=options.whole(0, 65535),
        default=PORT,
        metavar="N",
        help="the port; 0: a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on (default: %(default)s)"
    )
    parser.add_argument("--allow-break", action="store_true", help="allow to break and revoke leases")
    parser.add_argument(
        "--token-file", metavar="FILE", help="a file with the token, 16 characters or more (default: a random token)"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which browsers use it, such as that of a proxy; can be repeated",
    )
    options.add_url(parser)


def _run(arguments: argparse.Namespace) -> int:
    import logging
    import secrets

    from holdfast.dashboard import dashboard
    from holdfast.dashboard.security import LOOPBACK_HOSTS

    try:
        import uvicorn
    except ImportError as error:
        raise ConfigurationError(f"the dashboard needs uvicorn ({error}): pip install 'holdfast[dashboard]'") from error

    token = secrets.token_urlsafe(24) if arguments.token_file is None else _read_token(arguments.token_file)
    if arguments.token_file is None and not _is_loopback(arguments.host):
        raise ConfigurationError(f"--host {arguments.host} is reachable from other machines: this needs --token-file")
    hosts = [*LOOPBACK_HOSTS, arguments.host, *arguments.allow_host]
    with options.open_existing(arguments) as client:
        client.inspect("holdfast")  # any name: a store that is missing or not available is reported here
        app = dashboard(client, token=token, allow_break=arguments.allow_break, hosts=hosts)
        with _listen(arguments.host, arguments.port) as listener:
            # Print who broke which lease, with the time.
            logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
            # A page keeps a request open, which must not delay the end.
            config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            _print_address(listener, arguments.token_file, token)
            server.run(sockets=[listener])
    return statuses.DONE


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {path} cannot be read: {error}") from error


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    import socket

    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error


def _print_address(listener: socket.socket, token_file: str | None, token: str) -> None:
    from urllib.parse import quote

    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    # The token of a file must not appear in a log. A terminal may show it, because its user can read the file.
    if token_file is None or sys.stdout.isatty():
        address += f"?token={quote(token, safe='')}"
    print(escape(address), flush=True)
