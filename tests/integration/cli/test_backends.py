"""`holdfast backends`: a promise shown that the backend does not make, a driver said to be there that is not."""

from __future__ import annotations

import importlib.metadata
import itertools
import re
import subprocess
import sys
import types

import pytest

import holdfast
from holdfast.cli.backends import describe
from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive
from holdfast.url import SCHEMES, Scheme, lacking
from tests.integration.cli.conftest import Place

WEAK = Guarantees(Exclusion.CACHE, FenceOrder.BEST_EFFORT, Order.NONE, Wake.POLL, Scope.NETWORK)
STRONG = WEAK._replace(exclusion=Exclusion.CONSENSUS, order=Order.FIFO)
ALONE = dict.fromkeys([Primitive.RWLOCK, Primitive.SEMAPHORE], "there is room for one only") | {
    Primitive.OWNER: "it has no names"
}


@pytest.fixture
def someone_elses(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A backend of two methods that is no part of holdfast."""
    protocol = types.ModuleType("elsewhere.protocol")
    vars(protocol).update(GUARANTEES={"queue": STRONG, "plain": WEAK}, LACKS={"queue": {}, "plain": ALONE})
    monkeypatch.setitem(sys.modules, "elsewhere", types.ModuleType("elsewhere"))
    monkeypatch.setitem(sys.modules, "elsewhere.protocol", protocol)
    return protocol


def test_every_scheme_is_listed_with_what_its_backend_promises(place: Place) -> None:
    listed = {each["scheme"]: each for each in place.run("backends", "--json").json}

    assert listed.keys() == SCHEMES.keys()
    for scheme, url in (("memory", "memory://"), ("sqlite", place.url)):
        with holdfast.Client(url) as client:
            (method,) = listed[scheme]["methods"]
            assert method.pop("primitives").keys() == {primitive.value for primitive in Primitive}
            assert method == {"method": None, **client.guarantees.as_dict()}
        assert listed[scheme]["installed"] is True
    assert listed["sqlite"]["driver"] == "sqlite3"


def test_the_table_fits_80_columns(place: Place) -> None:
    result = place.run("backends")

    assert (result.status, result.errors) == (0, "")
    assert all(len(line) <= 80 for line in result.lines)
    assert re.search(
        r"^sqlite:// +durable-authority +clock-bounded +FIFO +push +machine\+user$", result.out, re.MULTILINE
    )
    assert re.search(r"^sqlite:// +sqlite3, part of Python 3\.", result.out, re.MULTILINE)


def test_what_each_method_can_do_or_why_not_is_listed_as_its_protocol_says(place: Place) -> None:
    for each in place.run("backends", "--json").json:
        lacks = lacking(SCHEMES[each["scheme"]])
        for method in each["methods"]:
            assert method["primitives"] == {
                primitive.value: lacks[method["method"] or ""].get(primitive, True) for primitive in Primitive
            }


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_grid_of_primitives_says_the_same_at_any_width(place: Place, columns: str) -> None:
    shown = read_grid(place.run("backends", COLUMNS=columns).out)

    declared: dict[tuple[str, str], Lacks] = {}
    for folder in dict.fromkeys(scheme.package for scheme in SCHEMES.values()):
        name = next(name for name, scheme in SCHEMES.items() if scheme.package == folder)
        declared |= {(name, method): lacks for method, lacks in lacking(SCHEMES[name]).items()}
    assert shown == {
        row: {primitive.value: lacks.get(primitive, "yes") for primitive in Primitive}
        for row, lacks in declared.items()
    }


def read_grid(printed: str) -> dict[tuple[str, str], dict[str, str]]:
    """For each backend and method, each primitive: yes, or the reason why not."""
    words = {primitive.value for primitive in Primitive}
    notes: dict[str, str] = {}
    rows: dict[tuple[str, str], dict[str, str]] = {}
    headings: list[str] = []
    backend = last = ""
    for line in itertools.takewhile(lambda line: not line.startswith("options"), printed.splitlines()):
        first, *cells = line.split() or [""]
        if first == "backend":
            headings = cells if words.issuperset(cells) else []
        elif (note := re.fullmatch(r"(\d+): (.*)", line)) is not None:
            last, notes[note[1]] = note[1], note[2]
            headings = ["…"]
        elif headings == ["…"] and line.startswith("  "):
            notes[last] += " " + line.strip()
        elif headings and headings != ["…"] and first:
            backend = first.removesuffix("://") if first.endswith("://") else backend
            method = "" if first.endswith("://") else first.removeprefix("method=")
            rows.setdefault((backend, method), {}).update(zip(headings, cells, strict=False))
    return {row: {word: notes.get(cell, cell) for word, cell in cells.items()} for row, cells in rows.items() if cells}


def test_a_url_shows_its_own_backend_only(place: Place) -> None:
    (only,) = place.run("backends", "--json", "--url", place.url).json

    assert only["scheme"] == "sqlite"


def test_a_url_shows_what_its_own_method_can_do(place: Place) -> None:
    (only,) = place.run("backends", "--json", "--url", "redis://nobody.example/0?method=setnx").json

    (method,) = only["methods"]
    assert method["order"] == "none"
    assert method["primitives"]["lock"] is True
    assert "one" in method["primitives"]["semaphore"]


def test_a_backend_of_somebody_else_is_described_from_its_data(someone_elses: types.ModuleType) -> None:
    scheme = Scheme("elsewhere", driver="no_such_driver", extra="elsewhere", options=("method", "prefix"))

    found = describe("elsewhere", scheme)

    assert found.guarantees == {"queue": STRONG, "plain": WEAK}
    assert found.lacks == {"queue": {}, "plain": ALONE}
    assert (found.is_installed, found.version) == (False, None)
    assert found.install == "pip install 'holdfast[elsewhere]'"
    assert [method["method"] for method in found.as_dict()["methods"]] == ["queue", "plain"]


def test_an_installed_driver_is_found_with_its_version_but_not_imported() -> None:
    """Mypy stands for a driver here: it is installed wherever the tests are."""
    code = (
        "import sys; from holdfast.cli.backends import describe; from holdfast.url import Scheme\n"
        "found = describe('x', Scheme('holdfast.backends.memory', driver='mypy.api', extra='x'))\n"
        "print(found.is_installed, found.package, found.version, 'mypy' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "mypy", importlib.metadata.version("mypy"), "False"]


def test_methods_options_and_what_is_missing_are_shown(
    someone_elses: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.cli import main

    row = Scheme("elsewhere", driver="no_such_driver", extra="elsewhere", options=("method", "prefix"))
    monkeypatch.setitem(SCHEMES, "elsewhere", row)

    assert main(["backends"]) == 0

    shown = capsys.readouterr().out
    assert re.search(r"^  queue +consensus", shown, re.MULTILINE)
    assert re.search(r"^  plain +cache", shown, re.MULTILINE)
    assert re.search(r"^  queue +yes +yes +yes", shown, re.MULTILINE)
    assert re.search(r"^  plain +yes +(\d+) +\1 +yes", shown, re.MULTILINE)
    assert re.search(r"^\d+: there is room for one only$", shown, re.MULTILINE)
    assert "no_such_driver: not installed" in shown
    assert "elsewhere://  method, prefix" in shown
    assert "elsewhere://  pip install 'holdfast[elsewhere]'" in shown
