"""The tables of registers and records, to be read beside statements.py and schema.sql."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from holdfast.backends.mysql.port import Answer
from holdfast_lab.sim.servers.database import DatabaseTables, L, T


@dataclass(slots=True)
class Register:
    """A row of holdfast_marks."""

    id: bytes
    name: str
    number: int
    nonce: str
    expires: int


@dataclass(slots=True)
class StoredRecord:
    """A row of holdfast_records."""

    id: bytes
    name: str
    nonce: str
    payload: str
    expires: int


class Values(DatabaseTables[bytes, L, T, Register, StoredRecord], Generic[L, T]):
    """Each statement on registers and records."""

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

    def swap_record_answer(  # noqa: PLR0917  (the parameters of the statement)
        self, key: bytes, name: str, expected: str, nonce: str | None, payload: str | None, keep: int
    ) -> Answer:
        row = None if nonce is None else StoredRecord(key, name, nonce, payload or "", self.clock() + keep)
        return _record_answer(self.swap_record(key, expected, row))

    def read_record_answer(self, key: bytes) -> Answer:
        return _record_answer(self.read_record(key))

    def reap_records_answer(self, rows: int) -> Answer:
        return Answer(self.reap_expired_records(rows))


def _record_answer(record: StoredRecord | None) -> Answer:
    return Answer() if record is None else Answer(rows=[(record.nonce, record.payload)])


def _end(register: Register) -> tuple[int, bytes]:
    return register.expires, register.id
