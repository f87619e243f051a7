"""The backends that the suite runs on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.guarantees import Guarantees
from holdfast.primitives import Primitive
from holdfast.url import guarantees_of, lacks_of, parse, scheme_of


class Case(NamedTuple):
    """A backend under test: how to make a fresh store, and the guarantees that it claims and the suite checks."""

    name: str
    fresh_url: Callable[[Path], str]
    claims: Guarantees
    shares: bool = True  # it has readers and semaphores too
    shows_waiters: bool = True  # the store shows the waiters of a lock
    shows_who: bool = True  # the store shows the host, the process and the meta of a holder
    scheme: str = ""  # of its URL; if empty, the first word of the name
    # Another method or shape of a backend that is tested in full, with the same adapters. It runs the tests that are
    # marked `on_every_method`, and a part of the others, another part for each variant; each with one of the runtimes.
    is_variant: bool = False
    # Tests that are not marked `on_every_method` run with one of the runtimes each, some with threads, others with
    # asyncio. The engine is the same for both runtimes, and another backend runs all tests with both of them. The
    # adapters of this one differ: only `--all-methods` runs every test with both.
    one_runtime: bool = False

    @property
    def lacks(self) -> Mapping[Primitive, str]:
        """The primitives that its scheme and method do not have, each with the reason."""
        scheme = self.scheme or self.name.partition("-")[0]
        methods = lacks_of(scheme_of(scheme))
        return methods.get(self.name.removeprefix(scheme).removeprefix("-"), next(iter(methods.values())))


def case_of_url(url: str) -> Case:
    """The backend of a URL, with the guarantees that it declares. Each test has its own `{fresh}` or path."""
    address = parse(_fresh(url))
    scheme = scheme_of(address.scheme)
    guarantees, lacks = guarantees_of(scheme), lacks_of(scheme)
    method = address.options.get("method", next(iter(guarantees)))
    return Case(
        "-".join(filter(None, (address.scheme, method))),
        lambda _: _fresh(url),
        guarantees[method],
        shares=not lacks[method].keys() & {Primitive.RWLOCK, Primitive.SEMAPHORE},
        shows_waiters=Primitive.DETECT_DEADLOCKS not in lacks[method],
        scheme=address.scheme,
    )


def _fresh(url: str) -> str:
    if "{fresh}" in url:
        return url.replace("{fresh}", uuid.uuid4().hex)
    path, question_mark, query = url.partition("?")
    return f"{path.rstrip('/')}/{uuid.uuid4().hex}{question_mark}{query}"
