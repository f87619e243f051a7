"""A ZooKeeper URL, checked and parsed: servers, login, TLS, ACL, root node and options."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from holdfast.backends.url_parts import choice, host_and_port
from holdfast.backends.zookeeper.protocol.nodes import LAYOUTS, path_problem
from holdfast.backends.zookeeper.protocol.session_classes import TIMEOUT_MAX, TIMEOUT_MIN
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

ROOT = "/holdfast"  # the parent of locks' nodes, unless the URL has a path
_PORT = 2181
_TLS_FILES = ("ca_certs", "certfile", "keyfile")

# In the notation of zkCli.
_PERMISSIONS = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
_ACLS = {"open": "world:anyone:cdrwa", "creator": "auth::cdrwa", "read": "auth::cdrwa,world:anyone:r"}


class Access(NamedTuple):
    """One entry of the ACL of nodes that this client creates."""

    permissions: int
    scheme: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificates to verify the servers, and to authenticate to them."""

    ca_certs: str | None
    certfile: str | None
    keyfile: str | None
    verify: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperConfig:
    """One ensemble, and how to use it."""

    url: str  # without a password
    hosts: str  # in kazoo's format: host:port,host:port
    root: str  # "" or /a/b: the parent of locks' nodes
    layout: str
    raw_names: bool
    session_timeout: float | None  # seconds to request from the servers; None: as long as a lock's ttl
    login: str | None = field(repr=False)  # user:password
    acl: tuple[Access, ...]
    tls: Tls | None


def config_of(address: Address) -> ZookeeperConfig:
    """The configuration from an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    options = address.options
    userinfo, at, hosts = address.host.rpartition("@")
    if not at and "@" in address.path:
        raise ConfigurationError("url has an @ behind its first /: write / and @ in a password as %2F and %40")
    return ZookeeperConfig(
        url=address.redacted,
        hosts=",".join(map(_host, hosts.split(","))),
        root=_root(address.path),
        layout=choice(options, "layout", LAYOUTS),
        raw_names=_flag(options, "raw_names", default=False),
        session_timeout=_seconds(options, "session_timeout"),
        login=_login(userinfo),
        acl=_acl(options.get("acl", "open"), has_login=bool(userinfo) or "certfile" in options),
        tls=_tls(options),
    )


def _login(userinfo: str) -> str | None:
    if not userinfo:
        return None
    user, colon, password = userinfo.partition(":")
    if not user or not colon:
        raise ConfigurationError("url must have user and password, zookeeper://user:password@host, or neither")
    return f"{unquote(user)}:{unquote(password)}"


def _host(text: str) -> str:
    host, port = host_and_port(text, _PORT)
    if not host:
        raise ConfigurationError("url has a host without a name: zookeeper://host1,host2:2182/path")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _root(path: str) -> str:
    if not path:
        return ROOT
    if path == "/":
        return ""
    problem = path_problem(path)
    if problem:
        raise ConfigurationError(f"url has the path {path!r}, which cannot be a node of ZooKeeper: {problem}")
    return path


def _seconds(options: Mapping[str, str], name: str) -> float | None:
    if name not in options:
        return None
    try:
        seconds = float(options[name])
    except ValueError:
        seconds = math.nan
    if not TIMEOUT_MIN <= seconds <= TIMEOUT_MAX:
        span = f"{TIMEOUT_MIN:g} to {TIMEOUT_MAX:g}"
        raise ConfigurationError(f"{name} must be a number of seconds from {span}, not {options[name]!r}")
    return seconds


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise ConfigurationError(f"{name} must be yes or no, not {text!r}")


def _acl(text: str, *, has_login: bool) -> tuple[Access, ...]:
    entries = tuple(map(_access, _ACLS.get(text, text).split(",")))
    if any(entry.scheme == "auth" for entry in entries) and not has_login:
        raise ConfigurationError(
            f"acl={text} is for a client that logs in: give zookeeper://user:password@host, or a client certificate"
        )
    return entries


def _access(text: str) -> Access:
    match = re.fullmatch(r"([a-z0-9]+):(.*):([cdrwa]+)", text)
    if match is None:
        words = ", ".join(_ACLS)
        raise ConfigurationError(f"acl must be {words}, or a list of scheme:id:permissions as zkCli's setAcl takes it")
    scheme, identity, letters = match.groups()
    return Access(sum(_PERMISSIONS[letter] for letter in set(letters)), scheme, identity)


def _tls(options: Mapping[str, str]) -> Tls | None:
    if not _flag(options, "tls", default=False):
        given = [name for name in (*_TLS_FILES, "verify") if name in options]
        if given:
            raise ConfigurationError(f"{given[0]} is for TLS: add tls=yes")
        return None
    if "keyfile" in options and "certfile" not in options:
        raise ConfigurationError("url has keyfile= without certfile=: give both, or neither")
    return Tls(
        ca_certs=options.get("ca_certs"),
        certfile=options.get("certfile"),
        keyfile=options.get("keyfile"),
        verify=_flag(options, "verify", default=True),
    )
