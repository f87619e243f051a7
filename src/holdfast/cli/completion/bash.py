"""The script for bash.

Lock names are untrusted text. They are compared and quoted (`printf %q`), never expanded: `compgen -W` would execute
command substitutions in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from holdfast.cli.completion.spec import Argument, Command, Option, Spec, render

_SCRIPT = r"""# Completion of holdfast for bash, made by `holdfast completion bash`.
_holdfast() {
    COMPREPLY=()
    local line=${COMP_LINE:0:COMP_POINT} here=${COMP_WORDS[COMP_CWORD]} program=${1/#\~/$HOME}
    local current quote="" word option="" command="" before
    local -a words=() url=() offers=()
    local -i index position=0 lock_names=0

    # Bash breaks words at : and =, which names and options contain, so split the line at blanks.
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
            *) if [[ -z $command ]]; then command=$word; else position+=1; fi ;;
        esac
        case $command in
            @runs_another@) if ((position > 1)); then compopt -o bashdefault -o default; return; fi ;;
        esac
    done
    case $command in
        @runs_another@)
            if [[ $position == 1 && -z $option && $current != -* ]]; then
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
        case "$command $position" in
@arguments@
        esac
    fi

    if ((lock_names)); then
        # `ls` quotes unprintable names; these are not offered.
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
    """Return the script."""
    argument_cases = [case for command in spec.commands for case in _arguments(command)]
    return render(
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
        arguments="\n".join(argument_cases),
    )


def _arguments(command: Command) -> list[str]:
    return [
        _case(quote(f"{command.name} {position}"), _offer(argument))
        for position, argument in enumerate(command.arguments)
        if argument.is_lock or argument.choices
    ]


def _offer(argument: Argument) -> str:
    return "lock_names=1" if argument.is_lock else f"offers=({_words(argument.choices)})"


def _spellings(options: tuple[Option, ...]) -> str:
    return _words(spelling for option in options for spelling in option.spellings)


def _words(words: Iterable[str]) -> str:
    return " ".join(map(quote, words))


def _case(pattern: str, action: str) -> str:
    return f"            {pattern}) {action} ;;"
