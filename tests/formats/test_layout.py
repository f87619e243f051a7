"""The format on each server is the one that <store>.txt describes, which other versions of holdfast rely on.

As a program (`PYTHONPATH=. .venv/bin/python tests/formats/test_layout.py`) this writes these files.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast.url import SCHEMES
from tests.formats.layout import layout
from tests.formats.stores import STORES, has
from tests.support.processes import eventually

FOLDER = Path(__file__).parent
DESCRIBED = [store for store in STORES if store != "redis-cluster"]  # its keys are those of redis in other slots
ADVICE = """
the format of {store} on the server is not the one of tests/formats/{path}.

Other versions of holdfast on the same store read and write the format of that file. Undo the change, unless versions
before and after it exclude each other nevertheless, or refuse each other's locks: tests/formats/test_versions.py must
show that for all releases. Then write the files again with

    PYTHONPATH=. .venv/bin/python tests/formats/test_layout.py

and describe the change in docs/upgrading.md and CHANGELOG.md.

"""
VARYING = [  # patterns of values that differ between runs, and their replacements
    (r"--[^\n]*|(?<=int)\(\d+\)", ""),  # comments in SQL; a width that only some versions of MySQL show
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "#"),
    (r"[0-9a-f]{15,}(\.\d+)?|\d+\.\d{3,}|\d{5,}", "#"),  # nonces, sessions, numbers and times
    (r"datetime\.datetime\([^)]*\)", "#"),
    (r'("fence": ?|"pid": ?)\d+', r"\1#"),
    (r'("host": ?|"program": ?|"caller": ?)"[^"]*"', r"\1#"),
    (r"holder='[^ ']+", "holder='#"),
    (r"(Sequence': ')\d+", r"\1#"),  # a revision of NATS, which each renewal changes
    (r"\s+", " "),
]


@contextlib.contextmanager
def used(url: str, store: str) -> Iterator[None]:
    """A store with one lease of each kind, a waiter, a record and a register."""
    with contextlib.ExitStack() as stack:
        waiter = stack.enter_context(ThreadPoolExecutor(1, "waiter"))
        client = stack.enter_context(holdfast.Client(url))
        stack.enter_context(client.lock("held", meta={"key": "value"}))
        if has(store, Primitive.RWLOCK):
            stack.enter_context(client.rwlock("read").read())
        if has(store, Primitive.SEMAPHORE):
            stack.enter_context(client.semaphore("permits", limit=3))
        if has(store, Primitive.OWNER):
            stack.enter_context(client.lock("owned", owner="me"))
        if has(store, Primitive.ONCE):
            client.once("record", result=True, retention="1h").run(lambda: "value")
        if has(store, Primitive.ONCE_PER):
            client.once_per("1h", name="period")(lambda: None)()
        if has(store, Primitive.DETECT_DEADLOCKS):  # the store shows waiters
            waiter.submit(wait, url)
            eventually(lambda: bool(client.inspect("held").waiters))
        yield


def wait(url: str) -> None:
    with holdfast.Client(url) as client, client.lock("held"):
        pass


def describe(url: str) -> str:
    lines = set()
    for line in layout(url):
        text = line
        for pattern, replacement in VARYING:
            text = re.sub(pattern, replacement, text)
        lines.add(text.strip())
    return "\n".join(sorted(lines)) + "\n"


def test_every_store_has_a_description() -> None:
    packages = {SCHEMES[scheme].package for scheme in SCHEMES if scheme != "memory"}

    assert {SCHEMES[store.partition("-")[0]].package for store in DESCRIBED} == packages
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*DESCRIBED, "releases"}


@pytest.mark.parametrize("store", DESCRIBED)
def test_the_format_on_the_server_is_the_promised_one(store: str, tmp_path: Path) -> None:
    path = FOLDER / f"{store}.txt"
    promised = path.read_text()
    url = STORES[store](tmp_path)

    with used(url, store):
        with contextlib.suppress(AssertionError):
            eventually(lambda: describe(url) == promised, within=10)  # a waiter subscribes, then polls again
        actual = describe(url)

    changes = difflib.unified_diff(promised.splitlines(), actual.splitlines(), path.name, "on the server", lineterm="")
    assert actual == promised, ADVICE.format(store=store, path=path.name) + "\n".join(changes)


def write() -> None:
    for store in DESCRIBED:
        with tempfile.TemporaryDirectory() as folder:
            url = STORES[store](Path(folder))
            with used(url, store):
                time.sleep(2)  # a waiter subscribes, then polls again
                (FOLDER / f"{store}.txt").write_text(describe(url))


if __name__ == "__main__":
    write()
