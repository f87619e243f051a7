"""The script for bash.

Names of locks are other people's text: they are compared and quoted (`printf %q`), never expanded (`compgen -W` would
run what they contain).
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from holdfast.cli.completion.spec import Argument, Command, Option, Spec, fill

_SCRIPT = r"""# Completion of holdfast for bash, made by `holdfast completion bash`.
_holdfast() {
    COMPREPLY=()
    local line=${COMP_LINE:0:COMP_POINT} here=${COMP_WORDS[COMP_CWORD]} program=${1/#\~/$HOME}
    local current quote="" word option="" command="" before
    local -a words=() url=() offers=()
    local -i index place=0 asks=0

    # Bash breaks words at : and =, which names and options contain. Blanks tell better where a word begins.
    case $here in
        [\'\"]*) quote=${here:0:1} line=${line%"$here"} ;;
    esac
    read -a words <<<"$line"
    if [[ -n $quote ]]; then
        words+=("${here:1}")
    elif [[ -z $line || $line == *[[:blank:]] && $line != *\\[[:blank:]] ]]; then
        words+=("")
    fi
    current=${words[${#words[@]} - 1]}

    for ((index = 1; index < ${#words[@]} - 1; index++)); do
        word=${words[index]}
        if [[ -n $option ]]; then
            [[ $option == --url ]] && url=(--url "$word")
            option=""
            continue
        fi
        case $word in
            --)
                case $command in
                    @runs_another@) compopt -o bashdefault -o default; return ;;
                esac ;;
            --url=*) url=("$word") ;;
            @with_value@) option=$word ;;
            -*) ;;
            *) if [[ -z $command ]]; then command=$word; else place+=1; fi ;;
        esac
        case $command in
            @runs_another@) if ((place > 1)); then compopt -o bashdefault -o default; return; fi ;;
        esac
    done
    case $command in
        @runs_another@)
            if [[ $place == 1 && -z $option && $current != -* ]]; then
                compopt -o bashdefault -o default
                return
            fi ;;
    esac

    if [[ -n $option ]]; then
        case "$command $option" in
@values@
        esac
    elif [[ $current == -* ]]; then
        case $command in
@options@
        esac
    elif [[ -z $command ]]; then
        offers=(@commands@)
    else
        case "$command $place" in
@arguments@
        esac
    fi

    if ((asks)); then
        # Those that cannot be printed are quoted there; they are not offered.
        while IFS= read -r word; do
            [[ $word == "\$'"* ]] || offers+=("$word")
        done < <("$program" ls --names --no-search "${url[@]}" -- "$current" 2>/dev/null)
    fi
    for word in "${offers[@]}"; do
        [[ $word == "$current"* ]] || continue
        if [[ -n $quote ]]; then
            [[ $word == *[\'\"\\\$\`\!]* ]] || COMPREPLY+=("$word")
        else
            printf -v word %q "$word"
            COMPREPLY+=("$word")
        fi
    done
    if [[ -z $quote && $current == *[:=]* && $COMP_WORDBREAKS == *[:=]* ]]; then
        printf -v before %q "${current%"${current##*[:=]}"}"
        COMPREPLY=("${COMPREPLY[@]#"$before"}")
    fi
}
complete -F _holdfast holdfast
"""


def script(spec: Spec) -> str:
    """The whole of it."""
    of_commands = [case for command in spec.commands for case in _arguments(command)]
    return fill(
        _SCRIPT,
        commands=_words(command.name for command in spec.commands),
        with_value="|".join(spec.with_value),
        runs_another="|".join(command.name for command in spec.commands if command.runs_another) or "''",
        options="\n".join(
            [
                _case("''", f"offers=({_spellings(spec.options)})"),
                *(_case(command.name, f"offers=({_spellings(command.options)})") for command in spec.commands),
            ]
        ),
        values="\n".join(
            _case(quote(f"{command.name} {spelling}"), f"offers=({_words(option.choices)})")
            for command in spec.commands
            for option in command.options
            if option.choices
            for spelling in option.spellings
        ),
        arguments="\n".join(of_commands),
    )


def _arguments(command: Command) -> list[str]:
    return [
        _case(quote(f"{command.name} {place}"), _offer(argument))
        for place, argument in enumerate(command.arguments)
        if argument.is_lock or argument.choices
    ]


def _offer(argument: Argument) -> str:
    return "asks=1" if argument.is_lock else f"offers=({_words(argument.choices)})"


def _spellings(options: tuple[Option, ...]) -> str:
    return _words(spelling for option in options for spelling in option.spellings)


def _words(words: Iterable[str]) -> str:
    return " ".join(map(quote, words))


def _case(pattern: str, action: str) -> str:
    return f"            {pattern}) {action} ;;"
