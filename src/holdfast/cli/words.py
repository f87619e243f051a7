"""The words of a command line, before argparse reads them.

An option that a command does not have is refused with the nearest one that it has. A value may begin with a dash: then
`--ttl -5` is refused for its number. `holdfast run [options] NAME [--] COMMAND …` is cut where the command begins: the
options that follow are the command's own, as for flock(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import ConfigurationError


def cut(
    command: str, words: Sequence[str], takes_value: Mapping[str, bool], *, runs_another: bool
) -> tuple[list[str], list[str]]:
    """The words for argparse, and the command line to run.

    Args:
        command: The command's name, for messages.
        words: The words behind that name.
        takes_value: Every spelling of every option of the command, and whether a value follows it.
        runs_another: The first word behind the first argument begins another command line.

    Raises:
        ConfigurationError: there is no such option; names the nearest.
    """
    ours: list[str] = []
    rest = list(words)
    has_name = False
    while rest:
        word = rest.pop(0)
        if word == "--" and has_name and runs_another:
            return ours, rest
        if word == "--" and runs_another and rest:  # a name that may begin with a dash
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
    """Whether the next word is the value of this option, or of the last of these: -n, -nv, -w, -w5, --ttl, --ttl=5."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        _check(command, name, takes_value)
        return takes_value[name] and not equals
    for place, letter in enumerate(word[1:], start=2):
        _check(command, f"-{letter}", takes_value)
        if takes_value[f"-{letter}"]:
            return place == len(word)
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
