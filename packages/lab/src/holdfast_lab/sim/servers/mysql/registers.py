"""The table of registers, to be read beside statements.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.backends.mysql.port import Answer


@dataclass(slots=True)
class Register:
    """A row of holdfast_marks."""

    id: bytes
    name: str
    number: int
    nonce: str
    expires: int


class Registers:
    """Each statement on registers."""

    clock: Callable[[], int]
    registers: dict[bytes, Register]

    def advance_register_answer(self, key: bytes, name: str, number: int, nonce: str, keep: int) -> Answer:
        end = self.clock() + keep
        register = self.registers.get(key)
        if register is None:
            self.registers[key] = Register(key, name, number, nonce, end)
            return Answer(1, 1)
        before = (register.number, register.nonce, register.expires)
        if self.is_lower(register, number):
            register.nonce = nonce
        is_ours = register.nonce == nonce and register.number <= number
        if is_ours:
            register.expires = max(register.expires, end)
        register.number = max(register.number, number)
        return Answer(0 if before == (register.number, register.nonce, register.expires) else 2, int(is_ours))

    def is_lower(self, register: Register, number: int) -> bool:
        return register.number < number

    def read_registers_answer(self, keys: tuple[bytes, ...]) -> Answer:
        wanted = [register for register in self.registers.values() if register.id in keys]
        return Answer(rows=[(register.id.hex().upper(), str(register.number)) for register in wanted])

    def reap_registers_answer(self, rows: int) -> Answer:
        now = self.clock()
        old = [register for register in self.registers.values() if register.expires <= now]
        for register in sorted(old, key=_end)[:rows]:
            del self.registers[register.id]
        return Answer(len(old[:rows]))


def _end(register: Register) -> tuple[int, bytes]:
    return register.expires, register.id
