"""A KeyboardInterrupt reaches the handler that surrounds it, in every function that callers' threads run.

CPython runs signal handlers at backward jumps, too. From Python 3.13 on the compiler leaves some of these jumps, those
of loops and comprehensions that end in a condition, outside of the `try` or `with` around them; up to 3.12 an interrupt
counts as coming before the loop. Where that is so, a mutex stays locked, a ticket stays on the server, or a connection
with an unread reply is used again. The cure is to move the loop into a function of its own.
"""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"

# Run by loops, by our own background threads or by commands, where no KeyboardInterrupt arrives or the process ends.
NOT_BY_CALLERS = (
    "cli/",
    "sim/",
    "checking/",
    "aio.py",
    "aio/",
    "pipeline.py",
    "_run_timer",
    "_run_worker",
    "Listener._run",
    "Listener.run",
    "Listener._pass_on",
    "Subscriber.is_done",
    "Subscriber.to_ask",
    "Subscriber.to_drop",
    "NodeHealth._work",
    "NodeHealth._run_once",
)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def uncovered(code: CodeType) -> Iterator[int]:
    """The lines of backward jumps whose loop has a handler that an interrupt at the jump does not reach."""
    bytecode: Any = dis.Bytecode(code)
    entries = bytecode.exception_entries
    if not entries:
        return
    instructions = list(bytecode)
    position = {instruction.offset: number for number, instruction in enumerate(instructions)}

    def handlers(offset: int) -> set[int]:
        found: set[int] = set()
        ahead = [offset]
        while ahead:
            now = ahead.pop()
            new = {entry.target for entry in entries if entry.start <= now < entry.end} - found
            found |= new
            ahead.extend(new)
        return {target for target in found if catches_interrupts(instructions[position[target] :])}

    for jump in instructions:
        if jump.opname == "JUMP_BACKWARD":
            target: int = jump.argval
            raised_at = jump.offset if sys.version_info >= (3, 13) else instructions[position[target] - 1].offset
            if handlers(target) - handlers(raised_at):
                yield jump.positions.lineno if jump.positions and jump.positions.lineno else code.co_firstlineno


def catches_interrupts(handler: Sequence[dis.Instruction]) -> bool:
    """It is a `finally`, a `with` or an `except BaseException`, not an `except` for other errors alone."""
    if handler[0].opname != "PUSH_EXC_INFO":
        return False  # restores the variables of a comprehension
    kinds: list[object] = []
    for before, instruction in itertools.pairwise(handler[1:]):
        if instruction.opname == "CHECK_EXC_MATCH":
            kinds.append(before.argval)
        elif instruction.opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START"):
            break
    first = [instruction.opname for instruction in handler[1:8]]
    return "CHECK_EXC_MATCH" not in first or "BaseException" in kinds


def places() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        for code in codes(compile(path.read_text(), name, "exec")):
            for line in uncovered(code):
                place = f"{name}:{line} {code.co_qualname}"
                if not any(part in place for part in NOT_BY_CALLERS):
                    yield place


def test_an_interrupt_at_a_backward_jump_reaches_the_handlers_around_it() -> None:
    assert list(places()) == []


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the compiler covers this jump")
def test_the_check_finds_a_jump_that_is_not_covered() -> None:
    source = "def f(mutex, items):\n    with mutex:\n        return [item for item in items if item]\n"

    assert [line for code in codes(compile(source, "f.py", "exec")) for line in uncovered(code)] == [3]
