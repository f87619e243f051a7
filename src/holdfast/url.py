"""Parses the URL of a store: backend, address and options. A driver is imported only when its URL is used."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode

from holdfast.core.names import did_you_mean
from holdfast.core.ports import Backend
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.guarantees import Guarantees
from holdfast.primitives import Lacks, Primitive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.url_parts import Option


class Scheme(NamedTuple):
    """One row of the table of backends."""

    package: str  # its config.py has the options, its io/ has blocking.py and aio.py
    driver: str | None = None  # the module that must be importable
    extra: str | None = None  # the extra that installs the driver; None: it is part of Python
    searched: bool = False  # with some methods it has no index of its locks: listing them searches all keys
    posix: bool = False  # it needs FIFOs and file locks, which Windows does not have
    tables: bool = False  # it has tables that `holdfast init` can create
    login: bool = False  # its servers may require a password, which may be given as the keyword `password`
    distribution: str = ""  # name and version of the distribution of a plugin; "" for our own backends


_REDIS = Scheme("holdfast.backends.redis", driver="redis", extra="redis", searched=True, login=True)
_POSTGRESQL = Scheme("holdfast.backends.postgresql", driver="psycopg", extra="postgresql", tables=True, login=True)
_MYSQL = Scheme("holdfast.backends.mysql", driver="pymysql", extra="mysql", tables=True, login=True)
_ETCD = Scheme("holdfast.backends.etcd", login=True)
_NATS = Scheme("holdfast.backends.nats", login=True)
_MEMCACHED = Scheme("holdfast.backends.memcached", searched=True, login=True)

SCHEMES: dict[str, Scheme] = {
    "memory": Scheme("holdfast.backends.memory"),
    "sqlite": Scheme("holdfast.backends.sqlite", driver="sqlite3", posix=True),
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+unix": _REDIS,
    "redis+sentinel": _REDIS,
    "redis+cluster": _REDIS,
    "redlock": Scheme("holdfast.backends.redlock", driver="redis", extra="redis", searched=True, login=True),
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL,  # libpq accepts both
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "etcd": _ETCD,
    "etcds": _ETCD,
    "zookeeper": Scheme("holdfast.backends.zookeeper", driver="kazoo", extra="zookeeper", login=True),
    "nats": _NATS,
    "natss": _NATS,
    "memcached": _MEMCACHED,
    "memcacheds": _MEMCACHED,
}

_plugins: dict[str, Scheme] = {}  # of other distributions, as far as they were used and are valid

# Stores without a connection pool, and the reason.
_NO_POOL = {
    "memory": "it has no connections",
    "sqlite": "a client has one connection to its file",
    "zookeeper": "a client has at most three sessions, with one connection each",
}

# Libraries whose objects are accepted in place of a URL, and the scheme whose io/adopted.py reads their settings.
_ADOPTED = {
    "redis": "redis",
    "pymysql": "mysql",
    "psycopg": "postgresql",
    "psycopg_pool": "postgresql",
    "kazoo": "zookeeper",
}
_DIALECTS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}  # of engines of SQLAlchemy

_SECRET = ("password", "sentinel_password")  # options that no message may show

PasswordFunction = Callable[[], str] | Callable[[], Awaitable[str]]  # the latter for AsyncClient
RunCoroutine = Callable[[Coroutine[Any, Any, object], float], object]  # the coroutine, and the seconds that are left
OptionValue = str | float | timedelta | PasswordFunction  # the type of an option that is given as a keyword


class Address(NamedTuple):
    """A parsed URL, checked as far as possible without its backend."""

    scheme: str
    host: str  # user, password, hosts and ports, not decoded
    path: str
    options: dict[str, str]
    redacted: str  # the URL without its password: for messages, logs and `client.url`
    client: object = None  # the client object of the driver, if it was given instead of a URL
    passwords: Mapping[str, str | PasswordFunction] = MappingProxyType({})  # those given as keywords
    run_coroutine: RunCoroutine | None = None  # runs coroutine functions among them; None: there must be none


def parse(url: object, given: Mapping[str, OptionValue] | None = None) -> Address:
    """Parse a URL, or describe a client object of a driver. `given` are more options, from keywords.

    Raises:
        ConfigurationError: not a URL, an unknown scheme or an unknown option; the error names the valid ones.
    """
    given = given or {}
    if not isinstance(url, str):
        return _adopt(url, given)
    if "://" not in url:
        raise ConfigurationError(f"url must look like scheme://…, not {_safe(url)!r} (known: {_known()})")
    parts = _split(url)
    scheme = scheme_of(parts.scheme)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"url has the option {twice!r} twice: give it once")
    passwords: dict[str, Any] = {name: given[name] for name in _SECRET if name in given}
    for name, value in passwords.items():
        if not isinstance(value, str) and not callable(value):  # the value itself may be a secret
            raise ConfigurationError(f"{name} must be a str or a function that returns it, not {type(value).__name__}")
    keywords = option_texts({name: value for name, value in given.items() if name not in passwords})
    given_twice = sorted(options.keys() & keywords.keys())
    if given_twice:
        raise ConfigurationError(f"the option {given_twice[0]!r} is given in the url and as a keyword: give it once")
    check_options(parts.scheme, options)
    check_options(parts.scheme, keywords, ("ttl", "require"))
    known = ("password",) if scheme.login else ()
    check_options(parts.scheme, {name: "" for name in passwords if name not in known}, known)
    if parts.fragment or url.endswith("#"):
        raise ConfigurationError("url has a fragment: write # as %23 if it belongs to the path or a password")
    if parts.scheme == "redlock":  # each of its hosts may have a user before it and a path after it
        shown = ",".join(map(_without_password, f"{parts.netloc}{parts.path}".split(",")))
    else:
        shown = f"{_without_password(parts.netloc)}{parts.path}"
    query = "&".join(f"{name}={_redacted(name, value)}" for name, value in options.items())
    redacted = f"{parts.scheme}://{shown}" + (f"?{query}" if query else "")
    # Each host of a redlock URL may have a path, so its backend splits and decodes them.
    path = parts.path if parts.scheme == "redlock" else unquote(parts.path)
    return Address(parts.scheme, parts.netloc, path, options | keywords, redacted, passwords=passwords)


def joined(url: object) -> Any:
    """The redlock:// URL of a list of URLs; any other argument of a client is returned unchanged.

    Raises:
        ConfigurationError: see `redlock_url`.
    """
    if isinstance(url, list | tuple) and not any("redis" in _origins(each) for each in url):
        return redlock_url(url)
    return url


def redlock_url(urls: Sequence[object]) -> str:
    """The redlock:// URL for the servers of these URLs: independent servers, of which a majority decides.

    Raises:
        ConfigurationError: one of them is not a redis:// or rediss:// URL, or their options differ.
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
            other = _safe(scheme) if colons else type(url).__name__
            raise ConfigurationError(f"a list of urls is for {known} only, the nodes of a quorum: one is {other!r}")
        host, _, query = rest.partition("?")
        if "," in host:
            raise ConfigurationError("one of the urls names several servers: in a list each url names one")
        hosts.append(host)
        schemes.add(scheme)
        for option, value in parse_qsl(query, keep_blank_values=True):
            if queries.setdefault(option, value) != value:
                raise ConfigurationError(f"the urls differ in the option {option!r}: it must be the same in all")
    if len(schemes) > 1:
        raise ConfigurationError("some urls are redis:// and some rediss://: use TLS for all of them, or for none")
    if "rediss" in schemes:
        queries["tls"] = "yes"
    return f"redlock://{','.join(hosts)}" + (f"?{urlencode(queries)}" if queries else "")


def scheme_of(name: str) -> Scheme:
    """The row of a scheme: our own, or if there is none, that of a plugin.

    Raises:
        ConfigurationError: there is no such scheme, or its plugin is broken; the message names the distribution.
    """
    scheme = SCHEMES.get(name) or _plugins.get(name)
    if scheme is None:
        from holdfast.plugins import find, installed

        plugin = find(name)
        if plugin is None:
            known = [*SCHEMES, *(each.scheme for each in installed() if each.scheme not in SCHEMES)]
            raise ConfigurationError(f"url has the unknown scheme {_safe(name)!r}{did_you_mean(_safe(name), known)}")
        scheme = Scheme(plugin.package, distribution=plugin.distribution)
        _check_declarations(name, scheme)
        _plugins[name] = scheme
    return scheme


def _check_declarations(name: str, scheme: Scheme) -> None:
    """Raise ConfigurationError if the declarations of a plugin have another form than those of our own backends."""
    from holdfast.url_parts import Option

    declared = _load(scheme, "config", "OPTIONS")
    if not isinstance(declared, tuple) or not all(isinstance(option, Option) for option in declared):
        raise _broken(scheme, "OPTIONS in its config.py must be a tuple of Option")
    guarantees, lacks = guarantees_of(scheme), lacks_of(scheme)
    if not guarantees or not all(isinstance(each, Guarantees) for each in guarantees.values()):
        raise _broken(scheme, "GUARANTEES in its protocol/guarantees.py must be Guarantees, or a dict by method")
    if lacks.keys() != guarantees.keys():
        raise _broken(scheme, "GUARANTEES and LACKS in its protocol/guarantees.py must have the same methods, or none")
    if not all(map(_are_reasons, lacks.values())):
        raise _broken(scheme, "LACKS in its protocol/guarantees.py must be a dict of Primitive and reason")
    if "" not in guarantees and "method" not in {option.name for option in options_of(name, scheme)}:
        raise _broken(scheme, "it has several methods, but no option 'method'")


def _are_reasons(missing: object) -> bool:
    return isinstance(missing, Mapping) and all(
        isinstance(primitive, Primitive) and isinstance(why, str) for primitive, why in missing.items()
    )


def _load(scheme: Scheme, module: str, name: str) -> Any:
    """A name of a module of a backend.

    Raises:
        ConfigurationError: the backend is a plugin that lacks it, or that cannot be imported.
    """
    try:
        return getattr(importlib.import_module(f"{scheme.package}.{module}"), name)
    except Exception as error:
        if not scheme.distribution:
            raise
        raise _broken(scheme, f"{scheme.package}.{module}: {type(error).__name__}: {error}") from error


def _broken(scheme: Scheme, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the backend {scheme.package} of the distribution {scheme.distribution} is broken: {problem}"
    )


def options_of(name: str, scheme: Scheme) -> tuple[Option, ...]:
    """The options of a scheme, as its backend declares them. This needs no driver."""
    declared: tuple[Option, ...] = _load(scheme, "config", "OPTIONS")
    return tuple(option for option in declared if not option.schemes or name in option.schemes)


def check_options(scheme: str, options: Mapping[str, str], more: Sequence[str] = ()) -> None:
    """Raise ConfigurationError for an option that the scheme lacks. `more` are options of the client, for the hint."""
    own = [option.name for option in options_of(scheme, scheme_of(scheme))]
    for option, value in options.items():
        if "@" in option or ("@" in value and option not in own):  # the text before it may be part of a password
            raise ConfigurationError("url has an @ after its question mark: write ? as %3F in a password")
        if option == "connections" and scheme in _NO_POOL:
            raise ConfigurationError(f"{scheme}:// has no option 'connections': {_NO_POOL[scheme]}")
        if option not in own:
            known = (*own, *more)
            hint = did_you_mean(option, known) if known else " (it has none)"
            raise ConfigurationError(
                f"{scheme}:// has no option {option!r}{hint}; options of a lock, such as timeout, go to client.lock()"
            )


def option_texts(given: Mapping[str, OptionValue]) -> dict[str, str]:
    """The texts, as in a URL, of options that were given as keywords."""
    return {name: _option_text(name, value) for name, value in given.items()}


def _option_text(name: str, value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case str() | int() | float():
            return str(value)
        case timedelta():
            return f"{value.total_seconds():g}"
        case _:
            raise ConfigurationError(f"{name} must be a str, a number or a timedelta, not {type(value).__name__}")


def _adopt(client: object, given: Mapping[str, OptionValue]) -> Address:
    """The address of the server to which a client object of a driver is connected."""
    for name in _SECRET:
        if name in given:
            raise ConfigurationError(f"{name} is for a url: a client object of a driver has a password of its own")
    origins = _origins(client)
    if origins & {"unittest", "mock"}:
        raise unknown_client("a", type(client))
    scheme = next((_ADOPTED[origin] for origin in origins if origin in _ADOPTED), "")
    if isinstance(client, list | tuple):
        scheme = "redlock"
    elif "sqlalchemy" in origins:
        scheme = _scheme_of_engine(client)
    elif callable(client) and not scheme:
        scheme = "mysql"  # a function that makes connections; only this backend accepts one
    if not scheme:
        # The message has only the type: bytes, and the URL objects of other libraries, would show their password.
        raise ConfigurationError(
            f"url must look like scheme://… and be a str, not {type(client).__name__!r} (known: {_known()}; or a "
            "client object of redis-py or a list of them, a connection or pool of psycopg, a connection of PyMySQL or "
            "a function that makes them, an engine of SQLAlchemy, or a KazooClient)"
        )
    row = SCHEMES[scheme]
    require_driver(scheme, row.driver or "", row.extra)
    module = importlib.import_module(f"{row.package}.io.adopted")
    address: Address = module.address_of(client, option_texts(given))
    return address


def _origins(client: object) -> set[str]:
    """The names of the packages that define the class of this object and its bases."""
    return {kind.__module__.partition(".")[0] for kind in type(client).__mro__}


def _scheme_of_engine(client: object) -> str:
    name = getattr(getattr(client, "dialect", None), "name", None)
    if name in _DIALECTS:
        return _DIALECTS[name]
    if name is None:
        kind = type(client).__name__
        raise ConfigurationError(f"url is a {kind} of SQLAlchemy: give its Engine or AsyncEngine, or a url")
    known = "PostgreSQL, MySQL and MariaDB"
    raise ConfigurationError(f"url is an engine of {name}: only engines of {known} are accepted; give a url")


def unknown_client(prefix: str, kind: type) -> ConfigurationError:
    """The error for an object that may not be connected to the server that its attributes name."""
    return ConfigurationError(
        f"url is {prefix} {kind.__module__}.{kind.__qualname__}, which holdfast does not know: it may be connected "
        "to another server than its attributes name, or to none. Give a client object of the driver itself, or a url; "
        "for tests there is memory://, a store without a server"
    )


def opener(address: Address, runtime: str) -> Callable[..., Backend]:
    """The function that opens this address's backend on "blocking" or "aio".

    Raises:
        ConfigurationError: the driver is missing, with the command that installs it; or this system lacks what the
            backend needs.
    """
    scheme = scheme_of(address.scheme)
    if address.passwords and runtime == "blocking" and address.run_coroutine is None:
        import inspect

        for name, password in address.passwords.items():
            if inspect.iscoroutinefunction(password) or inspect.iscoroutinefunction(type(password).__call__):
                raise ConfigurationError(f"{name} is a coroutine function, which only AsyncClient awaits")
    if scheme.posix and not hasattr(os, "mkfifo"):
        raise ConfigurationError(
            f"{address.scheme}:// needs FIFOs and file locks, which {sys.platform} does not have: use a server, "
            "for example redis://"
        )
    if scheme.driver is not None:
        require_driver(address.scheme, scheme.driver, scheme.extra)
    function: Callable[..., Backend] = _load(scheme, f"io.{runtime}", "open_backend")
    return function if not scheme.distribution else functools.partial(_open_plugin, scheme, function)


def _open_plugin(scheme: Scheme, function: Callable[..., Any], address: Address, runtime: object) -> Any:
    """Open the backend of a plugin, and check that it has all verbs of this version of holdfast."""
    try:
        backend = function(address, runtime)
    except HoldfastError:
        raise
    except Exception as error:
        raise _broken(scheme, f"open_backend failed: {type(error).__name__}: {error}") from error
    verbs = (name for name in (*Backend.__annotations__, *vars(Backend)) if not name.startswith("_"))
    missing = [name for name in verbs if not hasattr(backend, name)]
    if missing:
        raise _broken(scheme, f"{type(backend).__name__} lacks {', '.join(missing)} of holdfast.backends.api.Backend")
    return backend


def guarantees_of(scheme: Scheme) -> Mapping[str, Guarantees]:
    """The guarantees of a backend by method, before a server is contacted. The default is first; "" for a single one.

    This needs no driver, because protocols import none.
    """
    guarantees = _load(scheme, "protocol.guarantees", "GUARANTEES")
    return guarantees if isinstance(guarantees, Mapping) else {"": guarantees}


def lacks_of(scheme: Scheme) -> Mapping[str, Lacks]:
    """The primitives that a backend lacks, and why, by method as in `guarantees_of`."""
    lacks = _load(scheme, "protocol.guarantees", "LACKS")
    by_method = isinstance(lacks, Mapping) and lacks and isinstance(next(iter(lacks)), str)
    methods: Mapping[str, Lacks] = lacks if by_method else {"": lacks}
    return methods


def require_driver(scheme: str, driver: str, extra: str | None) -> None:
    """Import the driver. Raises ConfigurationError with the command that installs it."""
    try:
        importlib.import_module(driver)
    except ImportError as error:
        how = (
            f"pip install 'holdfast[{extra}]'"
            if extra
            else "it is part of Python, but this Python was built without it: use another Python or another backend"
        )
        problem = f"{scheme}:// needs the module {driver!r}, which cannot be imported ({error})"
        raise ConfigurationError(f"{problem}: {how}") from error


def _safe(text: str) -> str:
    """The text for a message, or … if it could contain a password."""
    return text if re.fullmatch(r"[\w./+~-]*(:\d+)?", text) else "…"


def _redacted(name: str, value: str) -> str:
    # An ACL of ZooKeeper may contain the digest of a password, and a URL the password itself.
    is_secret = name in _SECRET or name.endswith("_url") or (name == "acl" and ":" in value)
    return "***" if is_secret else quote(value, safe="/:{}")


def _without_password(netloc: str) -> str:
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{host}"


def _split(url: str) -> SplitResult:
    """Split as urllib does, but allow several hosts, some of them IPv6 addresses in brackets."""
    scheme, _, rest = url.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    return SplitResult(scheme.lower(), netloc, slash + path, query, fragment)


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)
