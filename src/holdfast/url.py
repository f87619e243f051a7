"""URLs of stores: which backend, where, with which options. Imports a driver only when its URL is used."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from holdfast.core.names import did_you_mean
from holdfast.errors import ConfigurationError
from holdfast.guarantees import Guarantees
from holdfast.primitives import Lacks, Primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Scheme(NamedTuple):
    """One row of the table of backends."""

    package: str  # where its blocking.py and aio.py are
    driver: str | None = None  # the module that has to be importable
    extra: str | None = None  # the extra that installs it; None: it comes with Python
    options: tuple[str, ...] = ()  # what may stand behind the question mark
    adopts: bool = False  # its adopted.py takes the driver's own client object in place of a URL
    searched: bool = False  # it has no index of its locks: to list them, all keys of its servers are searched
    posix: bool = False  # it needs FIFOs and locks on files, which Windows does not have
    tables: bool = False  # its schema.py has the DDL, and its blocking.py can run it: `holdfast init`


def _redis(*options: str) -> Scheme:
    common = ("prefix", "method", "compat", "eviction", "replicas", "replicas_timeout")
    connection = ("connect_timeout", "io_timeout", "connections", "client_name")
    return Scheme(
        "holdfast.backends.redis",
        driver="redis",
        extra="redis",
        options=(*common, *connection, *options),
        adopts=True,
        searched=True,
    )


_TLS = ("ca_certs", "certfile", "keyfile", "verify")

SCHEMES: dict[str, Scheme] = {
    "memory": Scheme("holdfast.backends.memory"),
    "sqlite": Scheme("holdfast.backends.sqlite", driver="sqlite3", posix=True, options=("local",)),
    "redis": _redis(),
    "rediss": _redis(*_TLS),
    "redis+unix": _redis("db", "user", "password"),
    "redis+sentinel": _redis("sentinel_user", "sentinel_password", "tls", *_TLS),
    "redis+cluster": _redis("tls", *_TLS),
}

SCHEMES["redlock"] = Scheme(
    "holdfast.backends.redlock",
    driver="redis",
    extra="redis",
    searched=True,
    options=(
        *("prefix", "nodes", "max_ttl", "node_timeout", "quarantine", "eviction"),
        *("connect_timeout", "connections", "client_name", "tls", *_TLS),
    ),
)

SCHEMES["postgresql"] = Scheme(
    "holdfast.backends.postgresql",
    driver="psycopg",
    extra="postgresql",
    tables=True,
    options=(
        *("schema", "method", "connect_timeout", "connections", "host", "port", "user", "password", "passfile"),
        *(
            "application_name",
            "target_session_attrs",
            "sslmode",
            "sslrootcert",
            "sslcert",
            "sslkey",
            "sslcrl",
            "channel_binding",
        ),
    ),
)
SCHEMES["postgres"] = SCHEMES["postgresql"]  # as libpq has it

_MYSQL = Scheme(
    "holdfast.backends.mysql",
    driver="pymysql",
    extra="mysql",
    tables=True,
    options=("method", "connect_timeout", "connections", "socket", "user", "password", "tls", *_TLS),
    adopts=True,
)
SCHEMES["mysql"] = SCHEMES["mariadb"] = _MYSQL

_ETCD = ("prefix", "raw_names", "method", "connect_timeout", "connections")

SCHEMES["etcd"] = Scheme("holdfast.backends.etcd", options=_ETCD)
SCHEMES["etcds"] = Scheme("holdfast.backends.etcd", options=(*_ETCD, *_TLS))

SCHEMES["zookeeper"] = Scheme(
    "holdfast.backends.zookeeper",
    driver="kazoo",
    extra="zookeeper",
    options=("layout", "raw_names", "session_timeout", "acl", "tls", *_TLS),
)

_MEMCACHED = ("prefix", "connect_timeout", "io_timeout", "connections")
SCHEMES["memcached"] = Scheme("holdfast.backends.memcached", options=_MEMCACHED, searched=True)
SCHEMES["memcacheds"] = Scheme("holdfast.backends.memcached", options=(*_MEMCACHED, *_TLS), searched=True)

# Stores without a connection pool, and the reason.
_NO_POOL = {
    "memory": "it has no connections",
    "sqlite": "a client has one connection to its file",
    "zookeeper": "a client has at most three sessions, with one connection each",
}

_SECRET = ("password", "sentinel_password")  # options that no message may show

Option = str | float  # what an option may be given as, when it is given as a keyword


class Address(NamedTuple):
    """A URL, taken apart and checked as far as that goes without its backend."""

    scheme: str
    host: str  # user, password, hosts and ports, as they stand
    path: str
    options: dict[str, str]
    redacted: str  # the URL without its password: for messages, logs and `client.url`
    client: object = None  # the driver's own client object, if it was given in place of a URL


def parse(url: object, given: Mapping[str, Option] | None = None) -> Address:
    """Take a URL apart, or a driver's own client object; `given` are more options, as keywords.

    Raises:
        ConfigurationError: not a URL, an unknown scheme or option; says what would do.
    """
    if not isinstance(url, str):
        return _adopt(url, given or {})
    if "://" not in url:
        raise ConfigurationError(f"url must look like scheme://…, not {_harmless(url)!r} (known: {_known()})")
    parts = _split(url)
    if parts.scheme not in SCHEMES:
        scheme = _harmless(parts.scheme)
        raise ConfigurationError(f"url has the unknown scheme {scheme!r}{did_you_mean(scheme, SCHEMES)}")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        twice = next(name for name, _ in pairs if [one for one, _ in pairs].count(name) > 1)
        raise ConfigurationError(f"url has the option {twice!r} twice: give it once")
    keywords = in_words(given or {})
    both = sorted(options.keys() & keywords.keys())
    if both:
        raise ConfigurationError(f"the option {both[0]!r} is given in the url and as a keyword: give it once")
    check_options(parts.scheme, options)
    check_options(parts.scheme, keywords, ("ttl", "require"))
    if parts.fragment or url.endswith("#"):
        raise ConfigurationError("url has a fragment: write # as %23 if it belongs to the path or a password")
    if parts.scheme == "redlock":  # several hosts, and each may have a user before it and a path behind it
        shown = ",".join(map(_without_password, f"{parts.netloc}{parts.path}".split(",")))
    else:
        shown = f"{_without_password(parts.netloc)}{parts.path}"
    query = "&".join(f"{name}={_redacted(name, value)}" for name, value in options.items())
    redacted = f"{parts.scheme}://{shown}" + (f"?{query}" if query else "")
    # The redlock scheme has several hosts, and each may have a path: it takes them apart itself.
    path = parts.path if parts.scheme == "redlock" else unquote(parts.path)
    return Address(parts.scheme, parts.netloc, path, options | keywords, redacted)


def together(urls: Sequence[object]) -> str:
    """The one URL that names the servers of all these: independent ones, a majority of which decides.

    Raises:
        ConfigurationError: not each of them is a redis:// or rediss:// URL, or they do not go together.
    """
    if not urls:
        raise ConfigurationError("a list of urls must name the nodes of a quorum, and it is empty")
    hosts: list[str] = []
    schemes: set[str] = set()
    queries: dict[str, str] = {}
    for url in urls:
        scheme, colons, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
        if not colons or scheme not in {"redis", "rediss"}:
            known = "redis:// or rediss://"
            other = _harmless(scheme) if colons else type(url).__name__
            raise ConfigurationError(f"a list of urls is for {known} only, the nodes of a quorum: one is {other!r}")
        place, _, query = rest.partition("?")
        if "," in place:
            raise ConfigurationError("one of the urls names several servers: in a list each names one")
        hosts.append(place)
        schemes.add(scheme)
        for option, value in parse_qsl(query, keep_blank_values=True):
            if queries.setdefault(option, value) != value:
                raise ConfigurationError(f"the urls differ in the option {option!r}: it is for all of them together")
    if len(schemes) > 1:
        raise ConfigurationError("some urls are redis:// and some rediss://: use TLS for all of them, or for none")
    if "rediss" in schemes:
        queries["tls"] = "yes"
    return f"redlock://{','.join(hosts)}" + (f"?{urlencode(queries)}" if queries else "")


def check_options(scheme: str, options: Mapping[str, str], more: Sequence[str] = ()) -> None:
    """Raise ConfigurationError for one that this scheme does not take. `more` are the client's own, for the hint."""
    takes = SCHEMES[scheme].options
    for option, value in options.items():
        if "@" in option or ("@" in value and option not in takes):  # before it may stand the rest of a password
            raise ConfigurationError("url has an @ behind its question mark: write ? as %3F in a password")
        if option == "connections" and scheme in _NO_POOL:
            raise ConfigurationError(f"{scheme}:// has no option 'connections': {_NO_POOL[scheme]}")
        if option not in takes:
            known = (*takes, *more)
            hint = did_you_mean(option, known) if known else " (it has none)"
            raise ConfigurationError(
                f"{scheme}:// has no option {option!r}{hint}; options of a lock, such as timeout, go to client.lock()"
            )


def in_words(given: Mapping[str, Option]) -> dict[str, str]:
    """Options that were given as keywords, as they would stand in a URL."""
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise ConfigurationError(f"{name} must be a str or a number, not {type(value).__name__}")
    words = {True: "yes", False: "no"}
    return {name: words[value] if isinstance(value, bool) else str(value) for name, value in given.items()}


def _adopt(client: object, given: Mapping[str, Option]) -> Address:
    """The address of what a driver's own client object is connected to."""
    origins = {kind.__module__.partition(".")[0] for kind in type(client).__mro__}
    if origins & {"unittest", "mock"}:
        raise stand_in("a", type(client))
    if callable(client):
        require_driver("mysql", "pymysql", "mysql")
        origins.add("pymysql")  # a function that makes connections; by now nobody else takes one
    for scheme in SCHEMES.values():
        if scheme.adopts and scheme.driver in origins:
            module = importlib.import_module(f"{scheme.package}.io.adopted")
            address: Address = module.address_of(client, in_words(given))
            return address
    # Not the object itself: bytes, and the URL objects of other libraries, show their password.
    raise ConfigurationError(
        f"url must look like scheme://… and be a str, not {type(client).__name__!r} (known: {_known()}; or a client "
        "object of redis-py's, or a connection of PyMySQL's or a function that makes them)"
    )


def stand_in(what: str, kind: type) -> ConfigurationError:
    """The error for an object that may not be connected to the server that its attributes name."""
    return ConfigurationError(
        f"url is {what} {kind.__module__}.{kind.__qualname__}, which holdfast does not know: it may be connected to "
        "another server than it says, or to none. Give the driver's own client object, or a url; for tests there is "
        "memory://, a store without a server"
    )


def opener(address: Address, runtime: str) -> Callable[..., Any]:
    """The function that opens this address's backend on "blocking" or "aio".

    Raises:
        ConfigurationError: the driver is missing; says how to install it. Or this system cannot have that store.
    """
    scheme = SCHEMES[address.scheme]
    if scheme.posix and not hasattr(os, "mkfifo"):
        raise ConfigurationError(
            f"{address.scheme}:// needs FIFOs and locks on files, which {sys.platform} does not have: use a server, "
            "for example redis://"
        )
    if scheme.driver is not None:
        require_driver(address.scheme, scheme.driver, scheme.extra)
    module = importlib.import_module(f"{scheme.package}.io.{runtime}")
    function: Callable[..., Any] = module.open_backend
    return function


def declared(scheme: Scheme) -> Mapping[str, Guarantees]:
    """What its backend promises before a server was asked, for each method, the default first; "" if it has only one.

    No driver is needed for that: protocols import none.
    """
    guarantees = importlib.import_module(f"{scheme.package}.protocol.guarantees").GUARANTEES
    methods: Mapping[str, Guarantees] = {"": guarantees} if isinstance(guarantees, Guarantees) else guarantees
    return methods


def lacking(scheme: Scheme) -> Mapping[str, Lacks]:
    """What its backend cannot do, and why, for each method as in `declared`."""
    lacks: Any = importlib.import_module(f"{scheme.package}.protocol.guarantees").LACKS
    methods: Mapping[str, Lacks] = lacks if lacks and not isinstance(next(iter(lacks)), Primitive) else {"": lacks}
    return methods


def require_driver(scheme: str, driver: str, extra: str | None) -> None:
    """Import it, or say how to get it."""
    try:
        importlib.import_module(driver)
    except ImportError as error:
        how = (
            f"pip install 'holdfast[{extra}]'"
            if extra
            else "it is part of Python, but this one was built without it: use another Python or another backend"
        )
        problem = f"{scheme}:// needs the module {driver!r}, which cannot be imported ({error})"
        raise ConfigurationError(f"{problem}: {how}") from error


def _harmless(text: str) -> str:
    """For messages: the text itself, unless a password could be part of it."""
    return text if re.fullmatch(r"[\w./+~-]*(:\d+)?", text) else "…"


def _redacted(name: str, value: str) -> str:
    # An ACL of ZooKeeper may contain the digest of a password.
    return "***" if name in _SECRET or (name == "acl" and ":" in value) else quote(value, safe="/:{}")


def _without_password(place: str) -> str:
    user, at, host = place.rpartition("@")
    return f"{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{host}"


class _Parts(NamedTuple):
    scheme: str
    netloc: str
    path: str
    query: str
    fragment: str


def _split(url: str) -> _Parts:
    """As urllib does, except that there may be several hosts, some of them IPv6 addresses in brackets."""
    scheme, _, rest = url.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    return _Parts(scheme.lower(), netloc, slash + path, query, fragment)


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)
