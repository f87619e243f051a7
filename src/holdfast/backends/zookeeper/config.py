"""A ZooKeeper URL, checked and parsed: servers, login, TLS, ACL, root node and options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.backends.net.passwords import Password, password_of
from holdfast.backends.net.tls import tls_context, tls_options
from holdfast.backends.zookeeper.protocol.nodes import LAYOUTS, path_problem
from holdfast.backends.zookeeper.protocol.session_classes import TIMEOUT_MIN
from holdfast.errors import ConfigurationError
from holdfast.url import Address
from holdfast.url_parts import Option, choice, flag, login_and_hosts, node_of, seconds, values_of

ROOT = "/holdfast"  # the parent of locks' nodes, unless the URL has a path
_PORT = 2181

# In the notation of zkCli.
_PERMISSIONS = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
_ACLS = {"open": "world:anyone:cdrwa", "creator": "auth::cdrwa", "read": "auth::cdrwa,world:anyone:r"}


class Access(NamedTuple):
    """One entry of the ACL of nodes that this client creates."""

    permissions: int
    scheme: str
    id: str


SETTINGS = (
    seconds(
        "session_timeout",
        None,
        "seconds after which the ensemble ends the session of a client that has died or cannot be reached, for all of "
        "its locks; without it, each lock's own `ttl` counts",
        TIMEOUT_MIN,
    ),
    choice("layout", LAYOUTS[0], "the names of nodes: as Curator or as kazoo writes them", LAYOUTS),
    flag("raw_names", "no", "a name is a path: `a/b` is node `b` below node `a`, for programs that expect that"),
    Option(
        "acl",
        "open",
        "the ACL of nodes that the client creates: `open`, `creator` (any client that logs in as this user), `read` "
        "(as `creator`, others may read), or a list of `scheme:id:permissions` in the format of zkCli's `setAcl`",
        parse=lambda text: tuple(map(_access, _ACLS.get(text, text).split(","))),
    ),
)
_TLS = flag("tls", "no", "TLS, for a `secureClientPort`")
OPTIONS = (*SETTINGS, _TLS, *tls_options())


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperConfig:
    """One ensemble, and how to use it."""

    url: str  # without a password
    hosts: str  # in kazoo's format: host:port,host:port
    root: str  # "" or /a/b: the parent of locks' nodes
    layout: str
    raw_names: bool
    session_timeout: float | None  # seconds to request from the servers; None: as long as a lock's ttl
    user: str
    password: Password = field(repr=False)
    acl: tuple[Access, ...]
    tls: Mapping[str, str] | None  # the options; each session reads the files again, because they may be renewed


def config_of(address: Address) -> ZookeeperConfig:
    """The configuration from an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    if isinstance(address.client, ZookeeperConfig):
        return address.client
    options = address.options
    user, password, hosts = login_and_hosts(address.host, address.path)
    given = password_of(address, password)
    if bool(user) != (given is not None):
        raise ConfigurationError("url must have user and password, zookeeper://user:password@host, or neither")
    config = ZookeeperConfig(
        url=address.redacted,
        hosts=",".join(str(node_of(host, _PORT)) for host in hosts.split(",")),
        root=_root(address.path),
        user=user,
        password=given or "",
        tls=options if tls_context(options, is_on=_TLS.value(options)) else None,
        **values_of(options, SETTINGS),
    )
    if any(entry.scheme == "auth" for entry in config.acl) and not user and "certfile" not in options:
        raise ConfigurationError(
            f"acl={options['acl']} is for a client that logs in: give zookeeper://user:password@host, or a client "
            "certificate"
        )
    return config


def _root(path: str) -> str:
    if not path:
        return ROOT
    if path == "/":
        return ""
    problem = path_problem(path)
    if problem:
        raise ConfigurationError(f"url has the path {path!r}, which cannot be a node of ZooKeeper: {problem}")
    return path


def _access(text: str) -> Access:
    match = re.fullmatch(r"([a-z0-9]+):(.*):([cdrwa]+)", text)
    if match is None:
        words = ", ".join(_ACLS)
        raise ConfigurationError(f"acl must be {words}, or a list of scheme:id:permissions as zkCli's setAcl takes it")
    scheme, identity, letters = match.groups()
    return Access(sum(_PERMISSIONS[letter] for letter in set(letters)), scheme, identity)
