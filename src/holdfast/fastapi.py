"""A lock for each request of a FastAPI handler, as a dependency: `pip install 'holdfast[fastapi]'`.

    app = FastAPI(lifespan=holdfast.starlette.lifespan("redis://cache"))

    @app.post("/orders/{id}/ship")
    async def ship(id: int, lease: Annotated[AsyncLease, holdfast.fastapi.lock("order:{id}")]) -> Shipment:
        …

docs/fastapi.md is the guide.
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import AsyncIterator, Callable
from typing import Any, Unpack

try:
    import fastapi
    from fastapi.exceptions import RequestValidationError
    from pydantic import TypeAdapter, ValidationError
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise ImportError("holdfast.fastapi needs FastAPI: pip install 'holdfast[fastapi]'") from error

from holdfast.aio.client import AsyncClient
from holdfast.aio.locks import AsyncLease
from holdfast.core import names
from holdfast.core.decorators import TemplateField, parse_template
from holdfast.core.events import logger
from holdfast.core.locks import LockOptions, make_spec
from holdfast.core.names import Duration
from holdfast.errors import BackendError, ConfigurationError
from holdfast.starlette import client as client_of

# 0.121.0 has Depends(scope="function"), but ignores it for `dependencies=[…]`. Without it, FastAPI from 0.118 on leaves
# a dependency after the response was sent: a client that has its response would find the lock still held, and a loss
# at the end of the handler would be reported as a success.
_OLDEST = (0, 121, 1)
if tuple(map(int, re.findall(r"\d+", fastapi.__version__)[:3])) < _OLDEST:
    raise ImportError(
        f"holdfast.fastapi needs FastAPI {'.'.join(map(str, _OLDEST))} or newer, not {fastapi.__version__}: older ones "
        "cannot release a lock before the response is sent"
    )


def lock(
    name: str | None = None,
    *,
    name_of: Callable[..., Any] | None = None,
    busy: int = 423,
    retry_after: Duration = 1,
    client: AsyncClient | None = None,
    **options: Unpack[LockOptions],
) -> Any:
    """A dependency: the handler runs under the lock, which is released before the response is sent.

    It is a `Depends` whose value is the lease: `lease: Annotated[AsyncLease, lock("order:{id}")]`, or without the lease
    `dependencies=[lock("order:{id}")]`. If the lease is lost, an `async def` handler is cancelled, and in any case
    LockLost is raised, so the response is an error (500). If the store does not answer, the handler does not run, and
    the response has the status 503.

    Args:
        name: Text with fields over path parameters, which the handler must declare: "order:{id}". The values are those
            that the handler gets: with `id: int`, /orders/7 and /orders/07 have the same lock.
        name_of: Instead of `name`: a dependency that returns the name, of any parts of the request.
        busy: The status of the response if the lock is busy, with a header `Retry-After`.
        retry_after: The value of that header in seconds, rounded up; also with status 503.
        client: Default: that of `holdfast.starlette.lifespan`.
        options: Those of `AsyncClient.lock`. The default of `timeout` is 0: do not wait.

    Raises:
        ConfigurationError: an argument is refused; at a request: the handler has no such path parameter, or is a
            generator, whose body would run after the release.
    """
    if (name is None) == (name_of is None):
        raise ConfigurationError("lock() needs either the name or name_of=, a dependency that returns it")
    if type(busy) is not int or not 400 <= busy <= 599:  # noqa: PLR2004 - the statuses of errors
        raise ConfigurationError(f"busy must be the status of an error response, from 400 to 599, not {busy!r}")
    if client is not None and not isinstance(client, AsyncClient):
        raise ConfigurationError(f"client must be an AsyncClient, not {client!r}: handlers run in an event loop")
    headers = {"Retry-After": str(math.ceil(names.check_duration("retry_after", retry_after)))}
    make_name = name_of if name is None else _Template(name).fill
    options.setdefault("timeout", 0)
    if name is not None and len(name) <= names.GROUP_MAX and name.isprintable():
        options.setdefault("group", name)
    # The ttl of the client is not known yet: inf allows every stop_margin.
    make_spec("lock", "the name is known at the request", 1, exclusive=True, ttl=math.inf, options=options)

    async def hold(
        connection: HTTPConnection,
        lock_name: str = fastapi.Depends(make_name),
    ) -> AsyncIterator[AsyncLease]:
        _check_handler(connection)
        wanted = (client or client_of(connection)).lock(lock_name, **options)
        try:
            lease = await wanted.acquire()
        except BackendError as error:
            logger().warning("a request was refused, because lock %r cannot be acquired: %s", lock_name, error)
            raise fastapi.HTTPException(503, "The lock cannot be acquired now: try again later.", headers) from error
        if lease is None:
            raise fastapi.HTTPException(busy, "Another request is in progress: try again later.", headers)
        async with lease:
            yield lease

    return fastapi.Depends(hold, scope="function")


class _Template:
    """A name with fields over the path parameters of handlers."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces = parse_template(names.check_lock_name(text))
        self._types: dict[tuple[object, str], TypeAdapter[Any] | None] = {}  # by handler and field

    async def fill(self, connection: HTTPConnection) -> str:
        """The name for this request.

        Raises:
            RequestValidationError: a path parameter is not of the type that the handler declares, or too long.
            ConfigurationError: the handler has no such path parameter.
        """
        values = {}
        for piece in self._pieces:
            if isinstance(piece, TemplateField):
                values[piece.parameter] = self._value(connection, piece.parameter)
        text = "".join([piece if isinstance(piece, str) else piece.of(values) for piece in self._pieces])
        try:
            return names.check_lock_name(text)
        except ConfigurationError as error:  # the values are part of the request, which is therefore the wrong one
            problem = {
                "type": "value_error",
                "loc": ("path",),
                "msg": str(error),
                "input": dict(connection.path_params),
            }
            raise RequestValidationError([problem]) from None

    def _value(self, connection: HTTPConnection, field: str) -> Any:
        """The path parameter as the handler gets it, because one resource can have several texts: 7, 07, +7."""
        handler = connection.scope["endpoint"]
        if (handler, field) not in self._types:
            self._types[handler, field] = self._type(handler, field, connection.path_params)
        adapter = self._types[handler, field]
        value = connection.path_params[field]
        if adapter is None:
            return value
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise RequestValidationError([{**problem, "loc": ("path", field)} for problem in problems]) from None

    def _type(self, handler: Callable[..., Any], field: str, path_params: dict[str, Any]) -> TypeAdapter[Any] | None:
        """The declared type; None if the handler gets the value as it is."""
        declared = inspect.signature(handler).parameters.get(field)
        if declared is None or field not in path_params:
            title = getattr(handler, "__qualname__", repr(handler))
            missing = "parameter" if declared is None else "path parameter"
            raise ConfigurationError(
                f"name {self._text!r} has the field {field!r}, and the handler {title}() has no such {missing}: "
                "declare it there, or compute the name with name_of="
            )
        if declared.annotation is declared.empty:
            return None
        # One parameter only: the annotations of others may have names that exist for type checkers alone.
        only = types.SimpleNamespace(__annotations__={field: declared.annotation})
        variables = getattr(inspect.unwrap(handler), "__globals__", {})
        return TypeAdapter(typing.get_type_hints(only, variables, include_extras=True)[field])


def _check_handler(connection: HTTPConnection) -> None:
    """Refuse handlers whose work is not done when they return."""
    handler = connection.scope["endpoint"]
    if connection.scope["type"] != "http":
        raise ConfigurationError(
            "holdfast.fastapi.lock is for HTTP requests: a websocket takes its lock inside, with `async with`"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(
            f"the handler {handler.__qualname__}() is a generator, whose body would run after the lock was released: "
            "take the lock inside, with `async with`"
        )
