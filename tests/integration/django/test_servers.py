"""Hazard: the workers of a server share a client that was made before the fork, or each request makes one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.django.conftest import Project

REQUESTS = 20
WSGI = "tests.integration.django.project.wsgi:application"
ASGI = "tests.integration.django.project.asgi:application"


def increments(site_get: Callable[[str], dict[str, int]], path: str) -> list[dict[str, int]]:
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda _: site_get(path), range(REQUESTS)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("project", "preload"),
    # The same requests are in `test_an_async_view_works_under_asgi_with_one_client_and_under_wsgi[postgresql]`.
    [pytest.param("postgresql", False, marks=pytest.mark.extra), ("mariadb", True)],
    indirect=["project"],
)
def test_the_workers_of_gunicorn_exclude_each_other(project: Project, preload: bool) -> None:  # noqa: FBT001
    project.manage("locked_migrate", "--verbosity", "0")
    options = ["--preload"] if preload else []
    site = project.serve(
        *(sys.executable, "-m", "gunicorn", "--workers", "2", "--threads", "2", "--bind", "127.0.0.1:{port}"),
        *(*options, WSGI),
    )

    replies = increments(site.get, "/increment/")

    assert sorted(reply["value"] for reply in replies) == [*range(1, REQUESTS + 1)]
    assert len({reply["fence"] for reply in replies}) == REQUESTS
    assert "Traceback" not in site.stop()


@pytest.mark.parametrize(
    "project",
    # The same requests are in `test_the_workers_of_gunicorn_exclude_each_other[mariadb-True]`.
    ["postgresql", pytest.param("mariadb", marks=pytest.mark.extra)],
    indirect=True,
)
def test_an_async_view_works_under_asgi_with_one_client_and_under_wsgi(project: Project) -> None:
    project.manage("locked_migrate", "--verbosity", "0")
    asgi = project.serve(sys.executable, "-m", "uvicorn", "--port", "{port}", "--lifespan", "off", ASGI)
    wsgi = project.serve("runserver", "--noreload", "127.0.0.1:{port}", manage=True)

    asgi_replies = increments(asgi.get, "/increment-async/")
    wsgi_replies = increments(wsgi.get, "/increment-async/")

    assert sorted(reply["value"] for reply in [*asgi_replies, *wsgi_replies]) == [*range(1, 2 * REQUESTS + 1)]
    assert len({reply["client"] for reply in asgi_replies}) == 1
    assert "Traceback" not in asgi.stop()


def test_once_returns_the_first_result_to_later_requests(small_project: Project) -> None:
    small_project.manage("locked_migrate", "--verbosity", "0")
    site = small_project.serve("runserver", "--noreload", "127.0.0.1:{port}", manage=True)

    first, second = site.get("/charge/7/"), site.get("/charge/7/")

    assert first == second
    assert site.get("/charge/8/")["at"] > first["at"]
