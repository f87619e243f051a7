"""The script for fish. Its `complete` quotes the candidates."""

from __future__ import annotations

from holdfast.cli.completion.spec import Command, Option, Spec, render

_SCRIPT = r"""# Completion of holdfast for fish, made by `holdfast completion fish`.
function __holdfast_locks
    set -l words (commandline -opc)
    set -l url (string match -- '--url=*' $words)
    if set -l at (contains -i -- --url $words)
        set url --url $words[(math $at + 1)]
    end
    # `ls` quotes unprintable names; these are not offered.
    $words[1] ls --names --no-search $url 2>/dev/null | string match -v -- "\$'*"
end

complete -c holdfast -f
@lines@
"""


def script(spec: Spec) -> str:
    """Return the script."""
    lines = [_option("__fish_use_subcommand", option) for option in spec.options]
    lines += [
        _line("__fish_use_subcommand", f"-a {command.name} -d {_quote(command.summary)}") for command in spec.commands
    ]
    for command in spec.commands:
        lines += _of_command(command)
    return render(_SCRIPT, lines="\n".join(lines))


def _of_command(command: Command) -> list[str]:
    condition = f"__fish_seen_subcommand_from {command.name}"
    lines = [_option(condition, option) for option in command.options]
    for argument in command.arguments:
        if argument.is_lock:
            lines.append(_line(condition, "-a '(__holdfast_locks)'"))
        elif argument.choices:
            lines.append(_line(condition, f"-a {_quote(' '.join(argument.choices))}"))
    if command.runs_another:
        has_name = "test (count (string match -v -- '-*' (commandline -opc))) -gt 2"  # counts the values of options too
        lines.append(_line(f"{condition}; and {has_name}", "-F"))
    return lines


def _option(condition: str, option: Option) -> str:
    spelled = [
        f"-l {spelling[2:]}" if spelling.startswith("--") else f"-s {spelling[1:]}" for spelling in option.spellings
    ]
    choices = f" -a {_quote(' '.join(option.choices))}" if option.choices else ""
    value = " -x" if option.takes_value else ""
    return _line(condition, f"{' '.join(spelled)}{value}{choices} -d {_quote(option.help)}")


def _line(condition: str, rest: str) -> str:
    return f"complete -c holdfast -n {_quote(condition)} {rest}"


def _quote(text: str) -> str:
    """Quote for fish, which has two escapes in single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
