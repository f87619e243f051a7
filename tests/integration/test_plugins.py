"""Backends of other distributions: one is not found, hides one of ours, or fails without its distribution's name."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.url import parse, scheme_of
from holdfast_lab import conformance
from tests.support.plugins import EXAMPLE, add_example_metadata, add_metadata, add_package

MODULES = sorted(path.stem for path in Path(conformance.__path__[0]).glob("test_*.py"))
PARTS = 2  # of the suite, which run at the same time


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on `sys.path` for distributions. The package of the example can be imported, but is not registered."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("holdfast.url._plugins", {})
    return folder


def test_a_url_of_a_plugin_opens_its_backend_with_threads_and_with_asyncio(site: Path, tmp_path: Path) -> None:
    add_example_metadata(site)
    url = f"files://{tmp_path}/locks"

    async def fences_of_holders() -> list[int | None]:
        async with holdfast.AsyncClient(url) as other:
            assert await other.lock("a").acquire(timeout=0) is None
            assert type(other._started().backend).__module__ == "holdfast_files.io.aio"
            return [holder.fence for holder in (await other.inspect("a")).holders]

    with holdfast.Client(url) as client, client.lock("a") as lease:
        assert type(client._started().backend).__module__ == "holdfast_files.io.blocking"
        assert asyncio.run(fences_of_holders()) == [lease.fence]


def test_the_error_for_an_unknown_scheme_names_the_schemes_of_plugins(site: Path) -> None:
    add_example_metadata(site)

    with pytest.raises(holdfast.ConfigurationError, match=r"unknown scheme 'filez' \(did you mean 'files'"):
        holdfast.Client("filez:///x")
    with pytest.raises(holdfast.ConfigurationError, match=r"unknown scheme 'mongo' \(known: memory, .*, files\)"):
        holdfast.Client("mongo://x")


def test_an_option_that_a_plugin_lacks_is_refused(site: Path) -> None:
    add_example_metadata(site)

    with pytest.raises(holdfast.ConfigurationError, match="files:// has no option 'connections'"):
        holdfast.Client("files:///x?connections=2")


def test_a_scheme_of_two_distributions_is_refused_with_both_names(site: Path) -> None:
    add_example_metadata(site)
    add_metadata(site, "more-files", {"files": "more_files"})

    with pytest.raises(holdfast.ConfigurationError, match=r"holdfast-files 0\.1\.0 and more-files 1\.0: uninstall"):
        holdfast.Client("files:///x")


def test_our_backend_is_used_instead_of_a_plugin_with_its_scheme(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_metadata(site, "their-redis", {"redis": "their_redis"})

    assert scheme_of(parse("redis://host").scheme).package == "holdfast.backends.redis"
    assert main(["backends", "redis"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["backends"]) == 0
    shown = capsys.readouterr()

    assert "redis:// of their-redis 1.0 is ignored: holdfast itself has a backend with this scheme" in shown.err
    assert "their_redis" not in shown.out


BROKEN = {
    "cannot_import": ({"config.py": "import no_such_module"}, "ModuleNotFoundError: No module named 'no_such_module'"),
    "no_options": ({"config.py": "OPTIONS = ['connections']"}, "OPTIONS in its config.py must be a tuple of Option"),
    "no_guarantees": ({"protocol/guarantees.py": "LACKS = {}"}, "has no attribute 'GUARANTEES'"),
    "odd_guarantees": ({"protocol/guarantees.py": "GUARANTEES, LACKS = 'all', {}"}, "must be Guarantees"),
    "odd_lacks": (
        {"protocol/guarantees.py": "from holdfast_files.protocol.guarantees import *\nLACKS = {'queue': {}}"},
        "must have the same methods, or none",
    ),
    "lacks_nothing": (
        {"protocol/guarantees.py": "from holdfast_files.protocol.guarantees import *\nLACKS = None"},
        "LACKS in its protocol/guarantees.py must be a dict of Primitive and reason",
    ),
    "no_reason": (
        {
            "protocol/guarantees.py": "from holdfast_files.protocol.guarantees import *\n"
            "LACKS = {Primitive.RWLOCK: None}"
        },
        "LACKS in its protocol/guarantees.py must be a dict of Primitive and reason",
    ),
    "no_method": (
        {
            "protocol/guarantees.py": "from holdfast_files.protocol import guarantees\n"
            "GUARANTEES, LACKS = {'queue': guarantees.GUARANTEES}, {'queue': {}}"
        },
        "several methods, but no option 'method'",
    ),
}


@pytest.mark.parametrize("package", BROKEN)
def test_a_plugin_with_broken_declarations_is_refused_with_its_distribution(
    package: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, problem = BROKEN[package]
    add_package(site, package, files)
    add_metadata(site, "broken-backend", {"broken": package})

    with pytest.raises(holdfast.ConfigurationError, match=r"distribution broken-backend 1\.0 is broken") as refused:
        holdfast.Client("broken:///x")
    assert main(["backends"]) == 0, "the others are listed"

    assert problem in str(refused.value)
    shown = capsys.readouterr()
    assert problem in shown.err
    assert "sqlite://" in shown.out


@pytest.mark.parametrize("entry_point", ["a:b", "a b", ""])
def test_an_entry_point_that_names_no_package_is_refused(entry_point: str, site: Path) -> None:
    add_metadata(site, "odd-backend", {"odd": entry_point})

    with pytest.raises(holdfast.ConfigurationError, match=r"odd-backend 1\.0 cannot be used: its entry point"):
        holdfast.Client("odd:///x")


def acquire(url: str, runtime: str) -> None:
    """Acquire and release a lock with a client of this runtime."""

    async def with_asyncio() -> None:
        async with holdfast.AsyncClient(url) as client, client.lock("a"):
            pass

    if runtime == "aio":
        asyncio.run(with_asyncio())
    else:
        with holdfast.Client(url) as client, client.lock("a"):
            pass


def test_a_plugin_for_one_runtime_only_is_refused_by_the_other_client(site: Path, tmp_path: Path) -> None:
    add_package(site, "only_threads", {"io/aio.py": ""})
    add_metadata(site, "only-threads", {"threads": "only_threads"})
    url = f"threads://{tmp_path}/locks"

    acquire(url, "blocking")
    with pytest.raises(holdfast.ConfigurationError, match=r"only-threads 1\.0 is broken: only_threads\.io\.aio"):
        acquire(url, "aio")


@pytest.mark.parametrize("runtime", ["blocking", "aio"])
def test_a_backend_without_a_verb_of_this_version_is_refused_when_it_is_opened(runtime: str, site: Path) -> None:
    module = "def open_backend(address, runtime):\n    return object()\n"
    add_package(site, f"old_{runtime}", {f"io/{runtime}.py": module})
    add_metadata(site, "old-backend", {"old": f"old_{runtime}"})

    with pytest.raises(holdfast.ConfigurationError, match=r"old-backend 1\.0 is broken: object lacks url.*try_acquire"):
        acquire("old:///x", runtime)


def test_an_error_of_a_plugin_that_opens_its_backend_names_the_distribution(site: Path) -> None:
    add_package(site, "fails_to_open", {"io/blocking.py": "def open_backend(address, runtime):\n    return 1 / 0\n"})
    add_metadata(site, "failing-backend", {"failing": "fails_to_open"})

    with pytest.raises(holdfast.ConfigurationError, match=r"failing-backend 1\.0 is broken: .*ZeroDivisionError"):
        acquire("failing:///x", "blocking")


def test_plugins_are_listed_with_their_guarantees_options_and_missing_primitives(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "from holdfast.backends.api import integer\nOPTIONS = (integer('depth', '2', 'levels of folders'),)\n"
    add_package(site, "deep_files", {"config.py": options})
    add_metadata(site, "deep-files", {"deep": "deep_files"})

    assert main(["backends", "--json"]) == 0
    *ours, deep = json.loads(capsys.readouterr().out)
    assert main(["backends", "deep"]) == 0
    shown = capsys.readouterr().out

    assert {each["distribution"] for each in ours} == {None}
    assert (deep["scheme"], deep["distribution"], deep["options"]) == ("deep", "deep-files 1.0", ["depth"])
    assert deep["methods"][0]["scope"] == "machine+user"
    assert deep["methods"][0]["primitives"]["semaphore"] == "a lock file names one holder"
    assert "levels of folders (default: 2)" in shown
    assert "plugin: deep-files 1.0" in shown


def test_a_primitive_that_a_plugin_lacks_is_refused_with_backends_that_have_it(site: Path, tmp_path: Path) -> None:
    add_example_metadata(site)

    with holdfast.Client(f"files://{tmp_path}/locks") as client:
        with pytest.raises(holdfast.Unsupported, match=r"a lock file names one holder.*these can: .*sqlite://"):
            client.semaphore("a", limit=2).acquire()
        with pytest.raises(holdfast.ConfigurationError, match=r"these promise enough: .*etcd://"):
            holdfast.Client("files:///x", require={"exclusion": "consensus"})


def test_plugins_are_not_looked_up_for_our_own_backends() -> None:
    code = "import sys, holdfast; holdfast.Client('memory://').close(); print('holdfast.plugins' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


@pytest.fixture
def example(site: Path, tmp_path: Path) -> Iterator[tuple[holdfast.Client, Path]]:
    """A client of the example, and its folder, in which `a` was locked once."""
    add_example_metadata(site)
    with holdfast.Client(f"files://{tmp_path}/locks") as client:
        with client.lock("a"):
            pass
        yield client, tmp_path / "locks"


def lock_file_of(client: holdfast.Client, name: str) -> Path:
    backend: Any = client._started().backend
    return Path(backend._path(name))


def test_the_example_grants_a_lock_whose_file_was_left_incomplete(example: tuple[holdfast.Client, Path]) -> None:
    client, _ = example
    for text in ("", '{"name": "a", "nonce": "'):
        lock_file_of(client, "a").write_text(text)

        assert not client.lock("a").locked()
        with client.lock("a", timeout=0):
            pass


def test_the_example_keeps_a_lease_of_an_earlier_boot_for_its_ttl(example: tuple[holdfast.Client, Path]) -> None:
    client, _ = example
    lease = client.lock("a", ttl=500, renew=False).acquire()
    assert lease is not None
    file = lock_file_of(client, "a")
    stored = json.loads(file.read_text())
    file.write_text(json.dumps(stored | {"boot": "earlier", "expires": 1.0}))

    (holder,) = client.inspect("a").holders

    assert holder.fence == lease.fence
    assert 400 < holder.remaining <= 500
    lease.release()


@pytest.mark.parametrize("damage", ["removed", "empty"])
def test_fences_of_the_example_grow_after_its_fence_file_was_lost(
    damage: str, example: tuple[holdfast.Client, Path]
) -> None:
    client, folder = example
    with client.lock("a") as first:
        pass

    if damage == "removed":
        (folder / "fence").unlink()
    else:
        (folder / "fence").write_text("")

    with client.lock("a") as second:
        assert second.fence > first.fence


def test_reading_a_folder_of_the_example_creates_no_file(site: Path, tmp_path: Path) -> None:
    add_example_metadata(site)
    (tmp_path / "empty").mkdir()

    for folder in ("empty", "missing"):
        with holdfast.Client(f"files://{tmp_path}/{folder}") as client:
            assert client.locks() == []
            assert not client.lock("a").locked()

    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "missing").exists()


def run_suite(modules: Sequence[str], site: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run modules of the conformance suite in a process that has the distributions of `site`."""
    names = [f"holdfast_lab.conformance.{module}" for module in modules]
    suite = ["--pyargs", *names, f"--holdfast-url={url}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *suite, "-q", "-p", "no:cacheprovider"],
        cwd=site,  # outside of the repository: neither its settings nor its conftest.py are used
        env=os.environ | {"PYTHONPATH": f"{site}:{EXAMPLE}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_example_passes_the_conformance_suite_as_far_as_it_declares(part: int, site: Path, tmp_path: Path) -> None:
    add_example_metadata(site)

    done = run_suite(MODULES[part::PARTS], site, f"files://{tmp_path}/locks")

    assert done.returncode == 0, done.stdout


def test_a_plugin_that_declares_too_much_fails_the_conformance_suite(site: Path, tmp_path: Path) -> None:
    declares = "from holdfast_files.protocol.guarantees import GUARANTEES\nLACKS = {}\n"
    backend = (
        "from holdfast_files.io import blocking\n"
        "class Backend(blocking.FilesBackend):\n    lacks = {}\n"
        "open_backend = Backend\n"
    )
    add_package(site, "liar", {"protocol/guarantees.py": declares, "io/blocking.py": backend})
    add_metadata(site, "liar", {"liar": "liar"})

    done = run_suite(["test_registers"], site, f"liar://{tmp_path}/locks")

    assert done.returncode == 1, done.stdout
    assert "does not support registers" in done.stdout
