"""Hazard: docs/cli*.md omit a command, or show output that a command no longer prints.

Every ```console block of these pages is run, in order, in one private store: as one bash script, with stdout and stderr
together; the help of a command is printed by this process. The output of each `$ command` is compared with the lines
below it. In the document

    …                       matches any text within a line; the number of blanks does not matter
    $ command &             runs in the background; the next command starts when there is another holder or waiter
    > more                  continues a command whose line ends with a backslash
    <!-- holder: … -->      starts holder.py, invisible to the reader, with these commands as JSON

As a program (`make readme`) this module updates the help of every command and the list of backends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.cli import main, make_parser
from holdfast.cli.completion import spec
from tests.integration.cli.conftest import CliStore
from tests.support.processes import WorkerPool

HELP = re.compile(r"holdfast (\w+) --help")
WRITTEN = re.compile(r"holdfast( \w+)? --help|holdfast backends")  # commands whose output `write` updates
PAGES = ("cli.md", "cli-operators.md", "cli-live.md", "cli-setup.md")
DOCUMENTS = [Path(__file__).parents[3] / "docs" / page for page in PAGES]
PART = re.compile(r"<!-- holder: (?P<program>.*?) -->|```console\n(?P<block>.*?)```", re.DOTALL)
# Progress lines of a search on a busy machine.
PROGRESS = re.compile(
    r"^(verify|worlds|runs|states|cancellations|shrinking): [\d,]+( of [\d,]+)?(, .*)?\n", re.MULTILINE
)
SHORT_TIME = re.compile(r"\bin 0\.\d s\b")  # of a command that does not wait
BLOCK_MAX = 200.0  # seconds; a longer run is a failure

# Background jobs are ended with their block. `changed` waits until the number of holders and waiters is not $1.
PRELUDE = """
tickets() { holdfast ls --json | grep -c '"pid"'; }
changed() { for _ in $(seq 600); do [ "$(tickets)" != "$1" ] && return; sleep 0.05; done; echo "nothing happened"; }
status() { return "$1"; }
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
"""


class Command(NamedTuple):
    document: str
    line: int
    text: str
    expected: str


class Part(NamedTuple):
    """A block of commands, or a holder to start before the next block."""

    commands: list[Command]
    program: dict[str, Any] | None


def parts() -> Iterator[Part]:
    for document in DOCUMENTS:
        text = document.read_text()
        for match in PART.finditer(text):
            if match["program"]:
                yield Part([], json.loads(match["program"]))
            else:
                first = text.count("\n", 0, match.start("block")) + 1
                yield Part(list(commands(match["block"].splitlines(), document.name, first)), None)


def commands(lines: list[str], document: str, first: int) -> Iterator[Command]:
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"{document}, line {first}: a console block begins with a command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        text, *rest = lines[start:end]
        while text.endswith("\\"):
            text += "\n" + rest.pop(0).removeprefix("> ")
        yield Command(document, first + start, text.removeprefix("$ "), "\n".join(rest))


def script(block: list[Command]) -> str:
    """Return a script that prints a mark before each command and keeps the `$?` of the previous one."""
    lines = [PRELUDE]
    for number, command in enumerate(block):
        lines.append(f"last=$?; echo @@{number}@@")
        if command.text.endswith("&"):
            lines += ["before=$(tickets)", command.text, 'changed "$before"']
        else:
            lines += ["status $last", command.text]
    return "\n".join([*lines, ""])


def is_as_written(command: Command, printed: str) -> bool:
    """Compare, with `…` as a wildcard. Blanks in help are ignored: its layout depends on the Python version."""
    expected, printed = (SHORT_TIME.sub("in 0.0 s", text) for text in (command.expected, printed))
    if "--help" in command.text:
        expected, printed = (" ".join(_spelled(text).split()) for text in (expected, printed))
    expected_lines, lines = ([" ".join(line.split()) for line in text.splitlines()] for text in (expected, printed))
    pattern = "\n".join(".*".join(map(re.escape, re.split(r" ?… ?", line))) for line in expected_lines)
    return re.fullmatch(pattern, "\n".join(lines)) is not None


def _spelled(text: str) -> str:
    """Since Python 3.13, `-w S, --timeout S` is `-w, --timeout S`."""
    return re.sub(r"(-\w) [A-Z=]+, (--)", r"\1, \2", text)


@pytest.fixture
def environment(store: CliStore, tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (folder / "holdfast").chmod(0o755)
    (tmp_path / "work").mkdir()
    return {
        **store.environment,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "COLUMNS": "80",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture
def help_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Return a function that returns the help of a command, printed by this process: a new one takes 0.1 s."""
    monkeypatch.setenv("COLUMNS", "80")

    def help_of(command: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        shown = capsys.readouterr()
        assert (end.value.code, shown.err) == (0, "")
        return shown.out

    return help_of


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_console_block_prints_what_the_document_shows(
    store: CliStore, pool: WorkerPool, environment: dict[str, str], tmp_path: Path, help_of: Callable[[str], str]
) -> None:
    wrong = []
    for part in parts():
        if part.program is not None:
            start(part.program, store, pool)
        else:
            helped = HELP.fullmatch(part.commands[0].text) if len(part.commands) == 1 else None
            results = (
                run(part.commands, environment, tmp_path)
                if helped is None
                else [(part.commands[0], help_of(helped[1]))]
            )
            for command, printed in results:
                if not is_as_written(command, printed):
                    wrong.append(f"{command.document}, line {command.line}: $ {command.text}\n{printed}")

    assert not wrong, "the docs say otherwise:\n\n" + "\n".join(wrong)


def test_every_command_has_its_help_in_the_document() -> None:
    documented = {command.text for part in parts() for command in part.commands}

    for command in spec.read(make_parser()).commands:
        assert f"holdfast {command.name} --help" in documented
    assert "holdfast --help" in documented


def test_every_help_fits_80_columns_and_lists_exit_statuses(help_of: Callable[[str], str]) -> None:
    for command in spec.read(make_parser()).commands:
        shown = help_of(command.name)
        assert all(len(line) <= 80 for line in shown.splitlines()), command.name
        assert "\nexit status:\n" in shown, command.name
        assert "\nexamples:\n" in shown, command.name


def test_the_check_detects_wrong_output(environment: dict[str, str], tmp_path: Path) -> None:
    block = ["$ echo one two", "one … two", "$ false", "$ echo $?; echo three", "1", "three", "$ echo \\", "> 4", "5"]

    results = run(list(commands(block, "a page", 1)), environment, tmp_path)

    assert [is_as_written(command, printed) for command, printed in results] == [True, True, True, False]


def start(program: dict[str, Any], store: CliStore, pool: WorkerPool) -> None:
    worker = pool.start(store.url)
    for verb, arguments in program.items():
        waiting = len(store.client.inspect(arguments["lock"]).waiters) if verb == "wait" else 0
        worker.call(verb, **arguments)
        if verb == "wait":
            store.await_waiters(arguments["lock"], waiting + 1)


def run(block: list[Command], environment: dict[str, str], folder: Path) -> list[tuple[Command, str]]:
    """Return the output of each command. It is written to a file, because a background job could keep a pipe open."""
    path = folder / "output"
    with path.open("wb") as output:
        subprocess.run(
            ["bash", "-c", script(block)],
            cwd=folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=BLOCK_MAX,
            check=False,
        )
    printed = re.split(r"@@\d+@@\n", PROGRESS.sub("", path.read_text()))[1:]
    assert len(printed) == len(block), (
        f"{block[0].document}, line {block[0].line}: the script ended early:\n{path.read_text()}"
    )
    return list(zip(block, printed, strict=True))


def write(text: str) -> str:
    """Return the document with updated output of the commands in WRITTEN, without version numbers."""

    def fresh(match: re.Match[str]) -> str:
        first, *rest = match["block"].splitlines()
        if any(line.startswith("$ ") for line in rest) or not WRITTEN.fullmatch(first.removeprefix("$ ")):
            return match[0]
        environment = {**os.environ, "COLUMNS": "80", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *first.split()[1:]], env=environment, capture_output=True, text=True, check=True
        )
        lines = [re.sub(r"^(\S+:// .* )\d+\.[\w.]+$", _without_version, line) for line in done.stdout.splitlines()]
        return "\n".join(["```console", first, *(line.rstrip() for line in lines), "```"])

    return re.sub(r"```console\n(?P<block>.*?)```", fresh, text, flags=re.DOTALL)


def _without_version(match: re.Match[str]) -> str:
    return match[1] + ("3.…" if match[1].endswith("Python ") else "…")


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(write(document.read_text()))
