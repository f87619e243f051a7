"""One HTTP connection to a member. It serves one request at a time, and is closed at the first error."""

from __future__ import annotations

from holdfast.backends.etcd.io.http import NotHttp, Response
from holdfast.backends.net.connection import PolledConnection
from holdfast.backends.net.poller import READ
from holdfast.backends.net.pool import wait_ready
from holdfast.errors import OutcomeUnknown


class Connection(PolledConnection):
    """One connection."""

    __slots__ = ()

    async def exchange(self, request: bytes, until: float) -> tuple[Response, float]:
        """Send a request and read its whole answer. Also returns the time just before the request was written.

        Raises:
            BackendUnavailable, OutcomeUnknown: the connection is closed.
        """
        response, sent, written = Response(), self._now(), 0
        try:
            if self._socket is not None and sent < until:
                try:
                    written = self._socket.send(request)
                except OSError:
                    written = 0  # `send` tries again, and reports the error if it is not temporary
            if written < len(request):
                await self.send(request, until, written)
            while True:  # without a condition, as in `Engine.acquire_new`
                if response.is_complete:
                    break
                # Not `_wait`, which adds a frame to each request.
                if not await wait_ready(self, self._poller, self.fileno(), READ, until):
                    raise TimeoutError("no answer in time")
                self.read_into(response)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | NotHttp):
                raise OutcomeUnknown(backend=self._url, problem=self._problem(error)) from error
            raise
        if response.is_last:
            self.close()
        return response, sent

    def read_into(self, response: Response) -> None:
        """Read what has arrived. Raises OSError or NotHttp if the connection has failed."""
        while (data := self.receive()) is not None:
            response.feed(data)
            if response.is_complete or not self.has_more:
                return
