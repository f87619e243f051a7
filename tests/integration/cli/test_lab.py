"""holdfast without holdfast-lab: its commands fail with a traceback, or other commands search for the laboratory."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import lab
from holdfast.cli.completion import SHELLS

SOURCE = str(Path(holdfast.__file__).parents[1])


def without_lab(*arguments: str, end: str = "sys.exit(status)") -> subprocess.CompletedProcess[str]:
    """Run a command with the standard library and holdfast only, so no entry point is found."""
    code = f"sys.path.insert(0, {SOURCE!r}); from holdfast.cli import main; status = main(sys.argv[1:]); {end}"
    command = [sys.executable, "-IS", "-c", f"import sys; {code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", lab.SUMMARIES)
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["--seeds", "3"],
        pytest.param(["--nonsense"], marks=pytest.mark.extra),  # also an option that only the laboratory knows
        pytest.param(["surplus"], marks=pytest.mark.extra),
    ],
)
def test_a_command_prints_how_to_install_it_when_the_laboratory_is_missing(name: str, arguments: list[str]) -> None:
    done = without_lab(name, *arguments)

    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"holdfast: {lab.missing(name)}\n")
    assert "pip install 'holdfast[lab]'" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], *(["completion", shell] for shell in SHELLS)])
def test_help_and_completion_name_both_commands_when_the_laboratory_is_missing(arguments: list[str]) -> None:
    done = without_lab(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert "simulate" in done.stdout
    assert "verify" in done.stdout
    assert "--seeds" not in done.stdout


def test_an_option_before_the_command_is_refused_when_the_laboratory_is_missing() -> None:
    done = without_lab("--seeds", "3")

    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: holdfast has no option --seeds")


@pytest.mark.parametrize("arguments", [[], ["show", "a", "--url", "memory://"]])
def test_other_commands_do_not_search_the_installed_distributions(arguments: list[str]) -> None:
    done = without_lab(*arguments, end="print(*sys.modules)")

    loaded = done.stdout.split()
    assert "holdfast.cli.lab" in loaded
    assert "importlib.metadata" not in loaded


def test_the_laboratory_provides_its_commands() -> None:
    commands = {entry_point.name: entry_point.value for entry_point in entry_points(group="holdfast.commands")}

    assert commands == {"simulate": "holdfast_lab.cli:add_parser", "verify": "holdfast_lab.cli.verify:add_parser"}
