"""A client that lives as long as a Starlette or FastAPI application: `pip install 'holdfast[starlette]'`.

    app = Starlette(routes=…, lifespan=holdfast.starlette.lifespan("redis://cache"))

    async def ship(request: Request) -> Response:
        async with holdfast.starlette.client(request).lock("order:42", timeout=5) as lease:
            …

docs/fastapi.md is the guide.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

try:
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise ImportError("holdfast.starlette needs Starlette: pip install 'holdfast[starlette]'") from error

from holdfast.aio.client import AsyncClient
from holdfast.base_client import DEFAULT_TTL
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.base_client import Store
    from holdfast.core.names import Duration
    from holdfast.guarantees import Requirements
    from holdfast.url import OptionValue, PasswordFunction

_KEY = "holdfast"  # in the state of the lifespan


def lifespan(
    url: Store | None = None,
    *,
    ttl: Duration = DEFAULT_TTL,
    require: Requirements | None = None,
    password: str | PasswordFunction | None = None,
    **options: OptionValue,
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, AsyncClient]]]:
    """The argument `lifespan` of an application: opens an AsyncClient at its start and closes it at its end.

    The arguments are those of AsyncClient. Requests get the client with `client(request)`, which is
    `request.state.holdfast`. At the end all leases of the client are released. The store is not contacted before the
    first request, so the application also starts during an outage of the store.

    A lifespan of your own enters this one, and returns its state with yours:

        @contextlib.asynccontextmanager
        async def own_lifespan(app):
            async with holdfast.starlette.lifespan("redis://cache")(app) as state:
                client = state["holdfast"]
                yield {**state, "database": …}
    """

    @contextlib.asynccontextmanager
    async def open_client(_app: Any) -> AsyncIterator[dict[str, AsyncClient]]:
        async with AsyncClient(url, ttl=ttl, require=require, password=password, **options) as client:
            yield {_KEY: client}

    return open_client


def client(connection: HTTPConnection) -> AsyncClient:
    """The client of the application that handles this request or websocket. FastAPI: `Depends(client)`.

    Raises:
        UsageError: the application has no `lifespan` of this module, or the server does not run it.
    """
    shared: AsyncClient | None = getattr(connection.state, _KEY, None)
    if shared is None:
        raise UsageError(
            "this application has no client: give it lifespan=holdfast.starlette.lifespan(url); a lifespan of your own "
            "must pass the state of that one on, and only that of the outermost application is run"
        )
    return shared
