"""Hazard: registers of old periods fill the memory of a process that runs for months."""

from __future__ import annotations

import holdfast
from holdfast.backends.memory.port import stores
from holdfast.runtimes.threads import run_sync


def test_expired_registers_are_dropped_and_others_are_kept() -> None:
    url = "memory://marks"
    with holdfast.Client(url) as client:
        backend, deadline = client._engine.backend, client._engine.runtime.now() + 60
        store = stores.get(url)
        assert run_sync(backend.advance_register("kept", 7, nonce="a" * 32, keep=3600, deadline=deadline))

        for number in range(5000):
            assert run_sync(backend.advance_register(f"old {number}", 1, nonce="b" * 32, keep=0, deadline=deadline))

        assert len(store.process_state.registers) <= 257
        assert run_sync(backend.read_registers(["kept"], deadline=deadline)) == [7]
        assert not run_sync(backend.advance_register("kept", 7, nonce="c" * 32, keep=0, deadline=deadline))
