"""A KeyboardInterrupt reaches the surrounding handler, in every function that runs on a thread of a caller.

CPython also runs signal handlers at backward jumps. Since Python 3.13 the compiler puts some of these jumps, those of
loops and comprehensions that end in a condition, outside of the `try` or `with` around them; up to 3.12 an interrupt is
raised before the loop. Then a mutex stays locked, a ticket stays on the server, or a connection with an unread reply is
used again. The fix is to move the loop into a function of its own.
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

# These run on event loops, on our own background threads, in commands or in tests: no KeyboardInterrupt arrives, or the
# process ends.
NOT_ON_CALLER_THREADS = (
    "cli/",
    "dashboard/",
    "testing/",
    "aio.py",
    "aio/",
    "_run_timer",
    "_run_worker",
    "Keeper._renew",
    "Watcher._run",
    "Watcher._handle",
    "Subscriber._run",
    "Listener.run",
    "Subscriber.changes",
    "NodeHealth._work",
    "NodeHealth._run_once",
)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def uncovered(code: CodeType) -> Iterator[int]:
    """Yield the lines of backward jumps at which an interrupt does not reach a handler of the loop."""
    bytecode: Any = dis.Bytecode(code)
    entries = bytecode.exception_entries
    if not entries:
        return
    instructions = list(bytecode)
    position = {instruction.offset: number for number, instruction in enumerate(instructions)}

    def handlers(offset: int) -> set[int]:
        targets: set[int] = set()
        pending = [offset]
        while pending:
            current = pending.pop()
            new = {entry.target for entry in entries if entry.start <= current < entry.end} - targets
            targets |= new
            pending.extend(new)
        return {target for target in targets if catches_interrupts(instructions[position[target] :])}

    for jump in instructions:
        if jump.opname == "JUMP_BACKWARD":
            target: int = jump.argval
            raised_at = jump.offset if sys.version_info >= (3, 13) else instructions[position[target] - 1].offset
            if handlers(target) - handlers(raised_at):
                yield jump.positions.lineno if jump.positions and jump.positions.lineno else code.co_firstlineno


def catches_interrupts(handler: Sequence[dis.Instruction]) -> bool:
    """Whether it is a `finally`, a `with` or an `except BaseException`."""
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


def uncovered_jumps() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        for code in codes(compile(path.read_text(), name, "exec")):
            for line in uncovered(code):
                jump = f"{name}:{line} {code.co_qualname}"
                if not any(part in jump for part in NOT_ON_CALLER_THREADS):
                    yield jump


def test_an_interrupt_at_a_backward_jump_reaches_the_handlers_around_it() -> None:
    assert list(uncovered_jumps()) == []


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the compiler covers this jump")
def test_the_check_detects_an_uncovered_jump() -> None:
    source = "def f(mutex, items):\n    with mutex:\n        return [item for item in items if item]\n"

    assert [line for code in codes(compile(source, "f.py", "exec")) for line in uncovered(code)] == [3]
