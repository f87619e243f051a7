"""Fixtures: the dashboard on a real uvicorn and a real store, requests to it, its stream, and a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest
import uvicorn

import holdfast
from holdfast.dashboard import dashboard
from tests.integration.cli.conftest import HOLDER
from tests.support.processes import PATIENCE, Worker, WorkerPool, eventually
from tests.support.server_process import missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "correct-horse-battery"  # noqa: S105 - of a server that ends with the test


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """A running dashboard."""

    def __init__(self, app: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}/"
        self.origin = self.url.rstrip("/")
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._listener]))

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._listener.close()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def request(
        self,
        path: str,
        *,
        method: str = "GET",
        token: str | None = TOKEN,
        host: str | None = None,
        body: str | None = None,
        **headers: str,
    ) -> Answer:
        """Send a request; the names of headers have underscores."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, body, {"host": self.host if host is None else host, **sent})
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read().decode())

    def post(self, path: str, fields: Any, **headers: str) -> Answer:
        """Send what a page sends, with the CSRF token, unless the headers differ."""
        csrf_token = self.request("/api/session").json["csrf_token"] or ""
        usual = {"origin": self.origin, "x_csrf_token": csrf_token, "content_type": "application/json"}
        return self.request(path, method="POST", body=json.dumps(fields), **(usual | headers))

    @contextlib.contextmanager
    def stream(self, query: str = "", **headers: str) -> Iterator[Stream]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", f"/api/stream{query}", headers={"authorization": f"Bearer {TOKEN}", **sent})
            yield Stream(connection.getresponse())


class Stream:
    """The messages of a stream."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.last_id = ""

    def next(self) -> dict[str, Any]:
        """The next message."""
        while line := self.response.readline().decode():
            if line.startswith("id: "):
                self.last_id = line[4:].strip()
            if line.startswith("data: "):
                message: dict[str, Any] = json.loads(line[6:])
                return message
        raise EOFError

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first message for which the condition is true."""
        while True:
            message = self.next()
            if condition(message):
                return message


class Store:
    """A store on disk, and a client to change it."""

    def __init__(self, path: Path, client: holdfast.Client) -> None:
        self.path = path
        self.client = client
        self.url = client.url

    def await_waiters(self, lock: str, number: int) -> None:
        eventually(lambda: len(self.client.inspect(lock).waiters) == number)


@contextlib.contextmanager
def deadlock(client: holdfast.Client) -> Iterator[None]:
    """Two threads: each holds one of `a` and `b` and waits for the other lock."""
    barrier = threading.Barrier(2)

    def take(first: str, second: str) -> None:
        with contextlib.suppress(holdfast.LockLost), client.lock(first):
            barrier.wait(PATIENCE)
            with client.lock(second):
                pass

    threads = [threading.Thread(target=take, args=pair, name=f"{pair[0]} first") for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for lease in client.inspect("a").holders:
            client.break_lock("a", lease.fence or 0)
        for thread in threads:
            thread.join(PATIENCE)


Serve = Callable[..., Site]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "locks.db"
    with holdfast.Client(f"sqlite://{path}") as client:
        yield Store(path, client)


@pytest.fixture
def serve(store: Store) -> Iterator[Serve]:
    """Start a dashboard: `serve(allow_break=True)`."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Site:
            client = stack.enter_context(holdfast.Client(store.url))
            return stack.enter_context(Site(dashboard(client, **({"token": TOKEN} | options))))

        yield start


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve()


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(HOLDER) as pool:
        yield pool


@pytest.fixture
def holder(pool: WorkerPool, store: Store) -> Worker:
    return pool.start(store.url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module only: it runs an event loop in the main thread, where other tests use asyncio.run()."""
    from playwright.sync_api import sync_playwright

    # The first is the same engine without the user interface, and takes two thirds of the processor time.
    paths = filter(None, map(shutil.which, ("chromium-headless-shell", "chromium")))
    path = next(paths, None) or missing("no chromium on this machine: `make servers` installs it")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a page of a dashboard in a browser without cookies. A message of the console fails the test."""
    with contextlib.ExitStack() as stack:
        problems: list[str] = []

        def open_page(site: Site, path: str = "", *, console: bool = True, **options: Any) -> Page:
            context = browser.new_context(**options)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE * 1000)
            if console:
                page.on("console", lambda message: problems.append(message.text))
                page.on("pageerror", lambda error: problems.append(str(error)))
            if path:  # sign in without a page, because each page that is drawn takes 0.2 s of processor time
                assert context.request.get(f"{site.url}?token={TOKEN}").ok
                page.goto(site.url + path)
            else:
                page.goto(f"{site.url}?token={TOKEN}")
                page.wait_for_url(site.url)
            page.wait_for_selector("#live[data-state=live]")
            return page

        yield open_page
        assert problems == []
