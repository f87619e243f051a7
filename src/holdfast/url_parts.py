"""The parts of a URL that several backends share: options, login, hosts and ports.

A backend declares its options as data, in OPTIONS of its config.py. The data is used to parse an option, for the
message about a wrong value, for the tables in docs/backends, and by `holdfast backends`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from holdfast.core.names import parse_duration
from holdfast.errors import ConfigurationError

PORT_MAX = 65535
_NUMBER_MAX = 10_000
_SECONDS_MAX = 3600.0
_FLAGS = dict.fromkeys(("yes", "true", "1", "on"), True) | dict.fromkeys(("no", "false", "0", "off"), False)
_ENCODE = "write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"


class Option(NamedTuple):
    """An option of a URL, as its backend declares it."""

    name: str
    default: str | None  # as in a URL; None: no value
    meaning: str  # one sentence for the docs and `holdfast backends`, with `code` in backticks
    valid: str = "text"  # the valid values, for the message
    parse: Callable[[str], Any] = str  # raises ValueError or KeyError for a value that is not valid
    schemes: tuple[str, ...] = ()  # the schemes that have it; empty: all of the backend
    field: str = ""  # the field of the configuration, if its name differs

    def value(self, texts: Mapping[str, str]) -> Any:
        """The value of this option in a URL, or its default.

        Raises:
            ConfigurationError: it is not valid; the message names the option and the valid values.
        """
        text = texts.get(self.name, self.default)
        if text is None:
            return None
        try:
            return self.parse(text)
        except ConfigurationError:
            raise
        except (ValueError, KeyError):
            raise ConfigurationError(f"{self.name} must be {self.valid}, not {text!r}") from None


def values_of(texts: Mapping[str, str], options: Iterable[Option]) -> dict[str, Any]:
    """The fields of a configuration that are options."""
    return {option.field or option.name: option.value(texts) for option in options}


def seconds(name: str, default: str | None, meaning: str, minimum: float = 0.0) -> Option:
    def parse(text: str) -> float:
        value = parse_duration(text)
        if not 0.0 < value <= _SECONDS_MAX or value < minimum:
            raise ValueError
        return value

    least = f"at least {minimum:g}" if minimum else "more than 0"
    valid = f"a number of seconds or text like '500ms', {least} and at most {_SECONDS_MAX:g} s"
    return Option(name, default, meaning, valid, parse)


def integer(name: str, default: str | None, meaning: str, minimum: int = 1, maximum: int = _NUMBER_MAX) -> Option:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not minimum <= int(text) <= maximum:
            raise ValueError
        return int(text)

    return Option(name, default, meaning, f"a whole number from {minimum} to {maximum}", parse)


def choice(name: str, default: str | None, meaning: str, choices: Iterable[str] | Mapping[str, object]) -> Option:
    values = choices if isinstance(choices, Mapping) else {text: text for text in choices}
    valid = ", ".join(values)
    return Option(name, default, meaning, f"one of {valid}" if len(values) > 1 else valid, values.__getitem__)


def flag(name: str, default: str, meaning: str, yes: str = "yes", no: str = "no") -> Option:
    values = _FLAGS | {yes: True, no: False}
    return Option(name, default, meaning, f"{yes} or {no}", lambda text: values[text.lower()])


class Node(NamedTuple):
    """One server."""

    host: str  # or the path of a Unix socket
    port: int  # 0: the host is a path

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def node_of(text: str, default_port: int) -> Node:
    """Parse `host`, `host:port`, `[::1]` or `[::1]:port`."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigurationError(f"url has an IPv6 address with a missing bracket: write [::1]:{default_port}")
        host, port = host.replace("%25", "%"), rest[1:]  # % comes before a zone, and may be encoded
    else:
        host, _, port = text.partition(":")
        host = unquote(host)
    if not host or not host.isprintable() or " " in host:
        raise ConfigurationError("url has an empty or invalid host name: write host:port, and commas only between them")
    # The message does not show the text, because it may be part of a password with an unencoded character.
    if port and not (re.fullmatch("[0-9]{1,9}", port) and 0 < int(port) <= PORT_MAX):
        raise ConfigurationError(f"url has a port that is no number from 1 to {PORT_MAX}; also {_ENCODE}")
    return Node(host, int(port or default_port))


def nodes_of(hosts: str, default_port: int) -> tuple[Node, ...]:
    """The servers of a list with commas."""
    nodes = tuple(node_of(text, default_port) for text in hosts.split(","))
    if len(set(nodes)) < len(nodes):
        raise ConfigurationError("url names the same server twice: leave one out")
    return nodes


def login_and_hosts(netloc: str, path: str) -> tuple[str, str | None, str]:
    """The user, the password (None without a colon) and the hosts before the path of a URL."""
    userinfo, at, hosts = netloc.rpartition("@")
    if not at and "@" in path:
        raise ConfigurationError(f"url has an @ behind its first /: {_ENCODE}")
    user, colon, password = userinfo.partition(":")
    return unquote(user), unquote(password) if colon else None, hosts


def check_unix_sockets(part: str) -> None:
    """Refuse this part of the URL where Python has no Unix sockets: on Windows."""
    import socket

    if not hasattr(socket, "AF_UNIX"):
        raise ConfigurationError(f"{part} needs Unix sockets, which Python lacks on {sys.platform}: give a host")
