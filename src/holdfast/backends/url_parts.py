"""Parsers for the parts of a URL that several backends share. Each raises a ConfigurationError that names the fix."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from holdfast.backends.net.pool import CONNECTIONS_MAX
from holdfast.errors import ConfigurationError

PORT_MAX = 65535
_CONNECTIONS_LIMIT = 10_000
_SECONDS_MAX = 3600.0


def host_and_port(text: str, default: int) -> tuple[str, int]:
    """Parse `host`, `host:port`, `[::1]` or `[::1]:port`. The host may be empty."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port_of(port.removeprefix(":"), default)
    host, _, port = text.partition(":")
    return unquote(host), port_of(port, default)


def check_unix_sockets(part: str) -> None:
    """Refuse this part of the URL where Python has no Unix sockets: on Windows."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigurationError(f"{part} needs Unix sockets, which Python lacks on {sys.platform}: give a host")


def port_of(text: str, default: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= PORT_MAX:
        raise ConfigurationError(f"url has the port {text!r}: it must be a number from 1 to {PORT_MAX}")
    return int(text)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = math.nan
    if not 0.0 < value <= _SECONDS_MAX:
        raise ConfigurationError(
            f"{name} must be a number of seconds, more than 0 and at most {_SECONDS_MAX:g}, not {options[name]!r}"
        )
    return value


def max_connections(options: Mapping[str, str]) -> int:
    """The number of connections to one server that a client may have open for its requests."""
    text = options.get("connections", str(CONNECTIONS_MAX))
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _CONNECTIONS_LIMIT:
        raise ConfigurationError(f"connections must be a whole number from 1 to {_CONNECTIONS_LIMIT}, not {text!r}")
    return int(text)


def choice(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """The value of an option that must be one of `choices`. The first of them is the default."""
    value = options.get(name, choices[0])
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value
