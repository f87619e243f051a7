"""Hazard: `holdfast backends` prints a guarantee that the backend does not give, or a driver that is not installed."""

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
from holdfast.url import SCHEMES, Scheme, lacks_of
from holdfast.url_parts import Option
from tests.integration.cli.conftest import CliStore

WEAK = Guarantees(Exclusion.CACHE, FenceOrder.BEST_EFFORT, Order.NONE, Wake.POLL, Scope.NETWORK)
STRONG = WEAK._replace(exclusion=Exclusion.CONSENSUS, order=Order.FIFO)
ALONE = dict.fromkeys([Primitive.RWLOCK, Primitive.SEMAPHORE], "there is room for one only") | {
    Primitive.OWNER: "it has no names"
}


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A backend with two methods that is not part of holdfast."""
    guarantees = types.ModuleType("elsewhere.protocol.guarantees")
    vars(guarantees).update(GUARANTEES={"queue": STRONG, "plain": WEAK}, LACKS={"queue": {}, "plain": ALONE})
    config = types.ModuleType("elsewhere.config")
    vars(config).update(OPTIONS=(Option("method", "queue", "how"), Option("prefix", None, "the `first` part")))
    for name in ("elsewhere", "elsewhere.protocol"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, config.__name__, config)
    monkeypatch.setitem(sys.modules, guarantees.__name__, guarantees)
    return guarantees


def test_every_scheme_is_listed_with_its_guarantees(store: CliStore) -> None:
    listed = {backend["scheme"]: backend for backend in store.run("backends", "--json").json}

    assert listed.keys() == SCHEMES.keys()
    for scheme, url in (("memory", "memory://"), ("sqlite", store.url)):
        with holdfast.Client(url) as client:
            (method,) = listed[scheme]["methods"]
            assert method.pop("primitives").keys() == {primitive.value for primitive in Primitive}
            assert method == {"method": None, **client.guarantees.as_dict()}
        assert listed[scheme]["installed"] is True
    assert listed["sqlite"]["driver"] == "sqlite3"


def test_the_table_fits_80_columns(store: CliStore) -> None:
    result = store.run("backends")

    assert (result.status, result.errors) == (0, "")
    assert all(len(line) <= 80 for line in result.lines)
    assert re.search(
        r"^sqlite:// +durable-authority +clock-bounded +FIFO +push +machine\+user$", result.out, re.MULTILINE
    )
    assert re.search(r"^sqlite:// +sqlite3, part of Python 3\.", result.out, re.MULTILINE)


def test_primitives_of_every_method_are_listed_as_its_protocol_declares_them(store: CliStore) -> None:
    for backend in store.run("backends", "--json").json:
        lacks = lacks_of(SCHEMES[backend["scheme"]])
        for method in backend["methods"]:
            assert method["primitives"] == {
                primitive.value: lacks[method["method"] or ""].get(primitive, True) for primitive in Primitive
            }


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_table_of_primitives_has_the_same_content_at_any_width(store: CliStore, columns: str) -> None:
    shown = read_grid(store.run("backends", COLUMNS=columns).out)

    guarantees_of: dict[tuple[str, str], Lacks] = {}
    for folder in dict.fromkeys(scheme.package for scheme in SCHEMES.values()):
        name = next(name for name, scheme in SCHEMES.items() if scheme.package == folder)
        guarantees_of |= {(name, method): lacks for method, lacks in lacks_of(SCHEMES[name]).items()}
    assert shown == {
        row: {primitive.value: lacks.get(primitive, "yes") for primitive in Primitive}
        for row, lacks in guarantees_of.items()
    }


def read_grid(printed: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return `yes` or the reason for each primitive of each backend and method."""
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


def test_url_limits_the_list_to_its_backend(store: CliStore) -> None:
    (only,) = store.run("backends", "--json", "--url", store.url).json

    assert only["scheme"] == "sqlite"


def test_a_scheme_limits_the_list_and_explains_its_options(store: CliStore) -> None:
    (only,) = store.run("backends", "--json", "redis+unix").json
    shown = store.run("backends", "redis+unix")

    assert only["scheme"] == "redis+unix"
    assert {"db", "connections"} <= set(only["options"])
    assert [option["name"] for option in only["option_details"]] == only["options"]
    (connections,) = (option for option in only["option_details"] if option["name"] == "connections")
    assert (connections["default"], connections["valid"]) == ("16", "a whole number from 1 to 10000")
    assert re.search(r"^  connect_timeout +seconds for a connection \(default: 3\)$", shown.out, re.MULTILINE)
    assert all(len(line) <= 80 for line in shown.lines)
    assert "`" not in shown.out.partition("options:")[2]


def test_an_unknown_scheme_is_refused_with_the_known_ones(store: CliStore) -> None:
    refused = store.run("backends", "rediz")

    assert refused.status == 2
    assert "argument SCHEME: invalid choice: 'rediz'" in refused.errors
    assert "redis+sentinel" in refused.errors


def test_url_limits_the_primitives_to_its_method(store: CliStore) -> None:
    (only,) = store.run("backends", "--json", "--url", "redis://nobody.example/0?method=setnx").json

    (method,) = only["methods"]
    assert method["order"] == "none"
    assert method["primitives"]["lock"] is True
    assert "one" in method["primitives"]["semaphore"]


def test_a_third_party_backend_is_described_from_its_declarations(third_party: types.ModuleType) -> None:
    scheme = Scheme("elsewhere", driver="no_such_driver", extra="elsewhere")

    description = describe("elsewhere", scheme)

    assert description.guarantees == {"queue": STRONG, "plain": WEAK}
    assert description.lacks == {"queue": {}, "plain": ALONE}
    assert (description.is_installed, description.version) == (False, None)
    assert description.install == "pip install 'holdfast[elsewhere]'"
    assert [method["method"] for method in description.as_dict()["methods"]] == ["queue", "plain"]


def test_an_installed_driver_is_found_with_its_version_but_not_imported() -> None:
    """Mypy represents a driver: it is always installed with the tests."""
    code = (
        "import sys; from holdfast.cli.backends import describe; from holdfast.url import Scheme\n"
        "found = describe('x', Scheme('holdfast.backends.memory', driver='mypy.api', extra='x'))\n"
        "print(found.is_installed, found.package, found.version, 'mypy' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "mypy", importlib.metadata.version("mypy"), "False"]


def test_methods_options_and_missing_drivers_are_listed(
    third_party: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.cli import main

    row = Scheme("elsewhere", driver="no_such_driver", extra="elsewhere")
    monkeypatch.setitem(SCHEMES, "elsewhere", row)

    assert main(["backends"]) == 0

    shown = capsys.readouterr().out
    assert re.search(r"^  queue +consensus", shown, re.MULTILINE)
    assert re.search(r"^  plain +cache", shown, re.MULTILINE)
    assert re.search(r"^  queue +yes +yes +yes", shown, re.MULTILINE)
    assert re.search(r"^  plain +yes +(\d+) +\1 +yes", shown, re.MULTILINE)
    assert re.search(r"^\d+: there is room for one only$", shown, re.MULTILINE)
    assert "no_such_driver: not installed" in shown
    assert re.search(r"^  elsewhere:// +method, prefix$", shown, re.MULTILINE)
    assert "elsewhere://  pip install 'holdfast[elsewhere]'" in shown
