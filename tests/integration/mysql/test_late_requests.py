"""Hazard: a request that arrives late, after its client has repeated it, ends a lease that was granted since."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.backends.mysql.config import config_of
from holdfast.backends.mysql.io.connections import make_backend
from holdfast.backends.mysql.port import Answer, Statement, Value
from holdfast.backends.mysql.protocol.statements import CONFIRM_NEW
from holdfast.core.tickets import Granted, Live, Waiting
from holdfast.errors import OutcomeUnknown
from holdfast.runtimes.threads import run_sync
from holdfast.url import parse
from tests.integration.mysql.conftest import Drive
from tests.support.mysql.drivers import CountingConnections, Driver


class LateConfirmation(CountingConnections):
    """Connections on which the first CONFIRM_NEW gets no answer, because it arrives late."""

    late: Sequence[Value] | None = None

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if statement is CONFIRM_NEW and self.late is None:
            self.late = values
            raise OutcomeUnknown(backend="mysql", problem="no answer in time")
        return await super().execute(statement, values, deadline=deadline)

    def arrive(self) -> None:
        """The late request arrives."""
        assert self.late is not None
        run_sync(super().execute(CONFIRM_NEW, self.late, deadline=self._runtime.now() + 20.0))


@pytest.mark.parametrize("calls", ["try_acquire", "try_acquire_all"])
def test_a_late_confirmation_of_a_new_row_does_not_end_the_lease(driver_of: Drive, url: str, calls: str) -> None:
    holder, other = driver_of(url), driver_of(url)
    late = delay_confirmation(holder, url)
    lease, waiter = holder.ticket("a"), other.ticket("a")
    with pytest.raises(OutcomeUnknown):
        holder.try_acquire(lease) if calls == "try_acquire" else holder.try_acquire_all([lease])
    assert isinstance(holder.try_acquire(lease, queue=True), Granted)
    assert isinstance(other.try_acquire(waiter, queue=True), Waiting)

    late.arrive()

    assert isinstance(other.try_acquire(waiter, queue=True), Waiting)
    assert isinstance(holder.renew(lease)[0], Live)


def delay_confirmation(driver: Driver, url: str) -> LateConfirmation:
    config = config_of(parse(url))
    connections = LateConfirmation(config, driver.runtime)
    driver._connections = connections
    driver.backend = make_backend(config, connections, driver.runtime)
    return connections
