r"""Hazard: completion offers an unknown word, the shell executes a lock name, an error is printed while typing.

Each shell runs on a terminal and receives the Tab key. The test then puts `printf` in front of the completed line, so a
name counts as completed only if the shell reads it back as that name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli import main, make_parser
from holdfast.cli.completion import SHELLS, spec
from tests.integration.cli.conftest import CliStore
from tests.support.processes import Worker
from tests.support.terminals import ESCAPE_CODES, OnTerminal

START = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "--private", "-i"],
}
LOAD = {
    "bash": "bind 'set enable-bracketed-paste off'; source <(holdfast completion bash)",
    "zsh": "unset zle_bracketed_paste; autoload -U compinit; compinit -u -d $DUMP; source <(holdfast completion zsh)",
    "fish": "holdfast completion fish | source",
}

Session = Callable[[str], list[str]]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed on this machine, so its completion cannot be tested")
    return name


@pytest.fixture
def session(shell: str, store: CliStore, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """An interactive shell with completion. It returns the words of the line that the keys produced."""
    folder = tmp_path / "bin"
    folder.mkdir()
    with (folder / "script").open("w") as script, contextlib.redirect_stdout(script):
        assert main(["completion", shell]) == 0  # faster than one more process for each test
    (folder / "holdfast").write_text(
        f'#!/bin/sh\n[ "$1" = completion ] && exec cat {folder}/script\nexec {sys.executable} -m holdfast "$@"\n'
    )
    (folder / "holdfast").chmod(0o755)
    environment = {
        **store.environment,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PS1": "> ",
        "DUMP": str(tmp_path_factory.getbasetemp() / "zcompdump"),  # of compinit, which takes long without it
        "LC_ALL": "C.UTF-8",
    }
    program = shutil.which(shell)
    assert program is not None
    terminal = OnTerminal([program, *START[shell]], environment, columns=400)
    terminal.type(f"cd {tmp_path}; {LOAD[shell]}; echo load''ed\n")
    terminal.read_until("loaded")

    def words(keys: str) -> list[str]:
        terminal.output = ""
        # The first key moves to the beginning of the line, the others insert `printf` there.
        terminal.type(f"{keys}\x01printf '<%s>' \n")
        terminal.type("echo an''swered\n")
        terminal.read_until("answered")
        match = re.search(r"(<holdfast>.*>)", ESCAPE_CODES.sub("", terminal.output))
        assert match is not None, terminal.output
        return re.findall(r"<(.*?)>", match[0])

    yield words
    terminal.close()


# ── with the Tab key ─────────────────────────────────────────────────────────────────────────────────────────────


def test_commands_and_options_are_completed(session: Session) -> None:
    assert session("holdfast sho\t") == ["holdfast", "show"]
    assert session("holdfast back\t --js\t") == ["holdfast", "backends", "--json"]
    assert session("holdfast backends zoo\t") == ["holdfast", "backends", "zookeeper"]
    assert session("holdfast init --pr\t") == ["holdfast", "init", "--print"]
    assert session("holdfast break a --fe\t") == ["holdfast", "break", "a", "--fence"]
    assert session("holdfast completion fi\t") == ["holdfast", "completion", "fish"]


def test_names_of_locks_in_use_are_completed(session: Session, holder: Worker) -> None:
    holder.call("hold_many", locks=["order:eu:42", "nightly report", "pool=3", "größe"])

    assert session("holdfast show order\t") == ["holdfast", "show", "order:eu:42"]
    assert session("holdfast show order:eu:\t") == ["holdfast", "show", "order:eu:42"]
    assert session("holdfast revoke --wait 5 nigh\t") == ["holdfast", "revoke", "--wait", "5", "nightly report"]
    assert session("holdfast break --yes nigh\t") == ["holdfast", "break", "--yes", "nightly report"]
    assert session("holdfast run pool=\t") == ["holdfast", "run", "pool=3"]
    assert session("holdfast ls gr\t") == ["holdfast", "ls", "größe"]


def test_an_open_quote_is_closed(shell: str, session: Session, holder: Worker) -> None:
    holder.call("hold", lock="nightly report: eu")

    assert session("holdfast show 'nightly rep\t") == ["holdfast", "show", "nightly report: eu"]
    assert session('holdfast show "nightly rep\t') == ["holdfast", "show", "nightly report: eu"]


def test_a_lock_name_is_never_executed_by_the_shell(session: Session, holder: Worker, tmp_path: Path) -> None:
    names = ["1$(touch ran)", "2`touch ran`", "3'; touch ran; '", "4\\$(touch ran)", "5{a,b}*"]
    holder.call("hold_many", locks=names)

    for name in names:
        assert session(f"holdfast show {name[0]}\t") == ["holdfast", "show", name]
        assert not (tmp_path / "ran").exists(), name


def test_names_are_read_from_the_store_in_the_command_line(
    session: Session, holder: Worker, store: CliStore, tmp_path: Path
) -> None:
    holder.call("hold", lock="here")

    other = f"sqlite://{tmp_path}/other.db"
    assert session(f"holdfast show --url {other} he\t") == ["holdfast", "show", "--url", other, "he"]
    assert session(f"holdfast show --url {store.url} he\t") == ["holdfast", "show", "--url", store.url, "here"]


def test_completion_prints_nothing_when_the_store_is_unavailable(session: Session) -> None:
    assert session("holdfast show --url nonsense x\t") == ["holdfast", "show", "--url", "nonsense", "x"]


def test_files_are_completed_for_the_command_of_run(session: Session, tmp_path: Path) -> None:
    (tmp_path / "script.sh").touch()

    for line in ("run a -- cat", "run a cat", "run --ttl 9 a cat -n"):
        assert session(f"holdfast {line} scri\t") == ["holdfast", *line.split(), "script.sh"]


# ── the contents of the scripts ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SHELLS)
def test_a_script_names_every_command_and_every_option_of_the_parser(store: CliStore, name: str) -> None:
    result = store.run("completion", name)

    known = spec.read(make_parser())
    assert (result.status, result.errors) == (0, "")
    assert {"run", "ls", "show", "revoke", "break", "watch", "backends", "completion", "demo"} <= {
        command.name for command in known.commands
    }
    for command in known.commands:
        assert re.search(rf"\b{command.name}\b", result.out)
        for option in command.options:
            for spelling in option.spellings:
                assert re.search(rf"(?<![\w-])(-l |-s |-{{0,2}}){spelling.lstrip('-')}(?![\w-])", result.out), spelling


def test_each_shell_accepts_its_script(shell: str, store: CliStore) -> None:
    check = ["--no-execute"] if shell == "fish" else ["-n"]

    script = store.run("completion", shell).out
    done = subprocess.run([shell, *check], input=script, text=True, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
