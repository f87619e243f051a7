"""Prepare the arguments of a command line for argparse.

- An unknown option is an error that names the closest known option.
- A value may begin with a dash, so the error for `--ttl -5` is about the number.
- `holdfast run [options] NAME [--] COMMAND …` is split before COMMAND. The options after it belong to the command, as
  with flock(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import ConfigurationError


def split_argv(
    command: str, words: Sequence[str], takes_value: Mapping[str, bool], *, runs_another: bool
) -> tuple[list[str], list[str]]:
    """Return the arguments for argparse, and the command line to run.

    Args:
        command: The command's name, for messages.
        words: The arguments after the name.
        takes_value: Maps every spelling of every option of the command to whether a value follows it.
        runs_another: The second positional argument begins another command line.

    Raises:
        ConfigurationError: an option is unknown.
    """
    ours: list[str] = []
    rest = list(words)
    has_name = False
    while rest:
        word = rest.pop(0)
        if word == "--" and has_name and runs_another:
            return ours, rest
        if word == "--" and runs_another and rest:  # the name may begin with a dash
            ours += ["--", rest.pop(0)]
            return ours, rest[1:] if rest[:1] == ["--"] else rest
        if word == "--":
            return [*ours, word, *rest], []
        if not word.startswith("-") or word == "-":
            if has_name and runs_another:
                return ours, [word, *rest]
            has_name = True
            ours.append(word)
        elif _awaits_value(command, word, takes_value) and rest and rest[0] not in (*takes_value, "--"):
            equals = "=" if word.startswith("--") else ""
            ours.append(f"{word}{equals}{rest.pop(0)}")
        else:
            ours.append(word)
    return ours, []


def _awaits_value(command: str, word: str, takes_value: Mapping[str, bool]) -> bool:
    """Whether the next word is the value of the (last) option in this word: -n, -nv, -w, -w5, --ttl, --ttl=5."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        _check(command, name, takes_value)
        return takes_value[name] and not equals
    for position, letter in enumerate(word[1:], start=2):
        _check(command, f"-{letter}", takes_value)
        if takes_value[f"-{letter}"]:
            return position == len(word)
    return False


def _check(command: str, name: str, known: Mapping[str, bool]) -> None:
    if name not in known:
        import difflib

        program = command if command == "holdfast" else f"holdfast {command}"
        close = difflib.get_close_matches(name, known, n=1)
        hint = (
            f"did you mean {close[0]}?"
            if close
            else f"`{program} --help` lists them; -- goes before a name with a dash"
        )
        raise ConfigurationError(f"{command} has no option {name}: {hint}")
