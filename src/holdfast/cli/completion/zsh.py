"""The script for zsh. It uses `_arguments`; `compadd` quotes the candidates."""

from __future__ import annotations

from shlex import quote

from holdfast.cli.completion.spec import Argument, Command, Option, Spec, render

_SCRIPT = r"""#compdef holdfast
# Completion of holdfast for zsh, made by `holdfast completion zsh`.
_holdfast_locks() {
    local -a names url
    local -i at=${words[(I)--url]}
    if ((at)); then
        url=(--url ${(Q)words[at+1]})
    else
        url=(${(Q)words[(R)--url=*]})
    fi
    names=(${(f)"$("${(Q)_holdfast_program/#\~/$HOME}" ls --names --no-search $url 2>/dev/null)"})
    # `ls` quotes unprintable names; these are not offered.
    names=(${names:#\$\'*})
    compadd -a -- names
}

_holdfast() {
    local curcontext=$curcontext state line _holdfast_program=$words[1]
    local -A opt_args
    local -a commands=(
@commands@
    )
    _arguments -C \
@options@
        '1: :->command' \
        '*:: :->argument'
    case $state in
        command) _describe -t commands command commands ;;
        argument)
            case $words[1] in
@cases@
            esac ;;
    esac
}

if [[ $funcstack[1] == _holdfast ]]; then
    _holdfast "$@"
else
    compdef _holdfast holdfast
fi
"""


def script(spec: Spec) -> str:
    """Return the script."""
    return render(
        _SCRIPT,
        commands="\n".join(
            f"        {quote(f'{command.name}:{_plain(command.summary)}')}" for command in spec.commands
        ),
        options="\n".join(f"        {each} \\" for option in spec.options for each in _option(option)),
        cases="\n".join(map(_case, spec.commands)),
    )


def _case(command: Command) -> str:
    parts = [each for option in command.options for each in _option(option)]
    parts += [_argument(position, argument) for position, argument in enumerate(command.arguments, start=1)]
    if command.runs_another:
        parts.append(quote("*:: :_normal"))
    lines = " \\\n".join(f"                        {part}" for part in parts)
    return f"                {command.name})\n                    _arguments \\\n{lines} ;;"


def _option(option: Option) -> list[str]:
    value = f":{_plain(option.value)}:{_choices(option.choices)}" if option.takes_value else ""
    together = " ".join(option.spellings)
    return [quote(f"({together}){spelling}[{_plain(option.help)}]{value}") for spelling in option.spellings]


def _argument(position: int, argument: Argument) -> str:
    action = "_holdfast_locks" if argument.is_lock else _choices(argument.choices)
    return quote(f"{position}:{_plain(argument.name)}:{action}")


def _choices(choices: tuple[str, ...]) -> str:
    # An empty list, because zsh completes no options before an argument without any action.
    return f"({' '.join(choices) or ' '})"


def _plain(text: str) -> str:
    """Replace characters that are special for `_arguments`."""
    return "".join("-" if character in "[]:\\" else character for character in text)
