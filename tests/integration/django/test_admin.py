"""Hazard: an admin page that breaks a lease without permission or confirmation, or runs the name of a lock as code."""

from __future__ import annotations

import http.cookiejar
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from html import unescape

import pytest

import holdfast
from tests.integration.django.conftest import Project, Site
from tests.support.processes import PATIENCE

OpenClient = Callable[..., holdfast.Client]
LOCKS, BREAK = "/admin/holdfast/lock/", "/admin/holdfast/lock/break/"
PASSWORD = "secret"  # noqa: S105
HOSTILE = "<script>alert(1)</script>&\n\u202eabc"
USERS = """
from django.contrib.auth.models import Permission, User
for name, codes in [("viewer", ["view_lock"]), ("operator", ["view_lock", "break_lock"]), ("clerk", [])]:
    user = User.objects.create_user(name, password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="holdfast", codename__in=codes))
"""


class Browser:
    """A session of a user."""

    def __init__(self, site: Site, user: str) -> None:
        self._origin = f"http://127.0.0.1:{site.port}"
        self._cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))
        self.get("/admin/login/")
        status, _ = self.post("/admin/login/?next=/admin/", username=user, password=PASSWORD)
        assert status == 200

    def get(self, path: str, **query: object) -> tuple[int, str]:
        return self._send(path + ("?" + urllib.parse.urlencode(query) if query else ""), None)

    def post(self, path: str, *, with_token: bool = True, **fields: str) -> tuple[int, str]:
        """Send a form."""
        token = next((cookie.value or "" for cookie in self._cookies if cookie.name == "csrftoken"), "")
        body = {**fields, "csrfmiddlewaretoken": token} if with_token else fields
        return self._send(path, urllib.parse.urlencode(body).encode())

    def _send(self, path: str, body: bytes | None) -> tuple[int, str]:
        try:
            with self._opener.open(self._origin + path, body, timeout=PATIENCE) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """One project for all tests here. Its second store does not answer."""
    folder = tmp_path_factory.mktemp("admin")
    made = Project(folder, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")})
    made.use(default={"DATABASE": "default"}, away={"URL": "redis://127.0.0.1:1"})
    made.manage("migrate", "--verbosity", "0")
    made.python(USERS)
    yield made
    made.end()


@pytest.fixture(scope="module")
def site(project: Project) -> Site:
    return project.serve("runserver", "--noreload", "127.0.0.1:{port}", manage=True)


@pytest.fixture
def store(project: Project, open_client: OpenClient) -> holdfast.Client:
    return open_client(f"sqlite://{project.folder}/db.sqlite3.locks")


def test_the_page_shows_locks_as_text(site: Site, store: holdfast.Client) -> None:
    with store.lock("order:42", meta={"user": "<b>"}) as lease, store.lock(HOSTILE):
        status, page = Browser(site, "viewer").get(LOCKS)

    assert status == 200
    assert "order:42" in page
    assert str(lease.fence) in page
    assert "&lt;b&gt;" in page
    assert "<script>alert" not in page
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;&amp;\n\u202eabc" in page
    assert "Break…" not in page


def test_a_prefix_selects_locks(site: Site, store: holdfast.Client) -> None:
    with store.lock("order:42"), store.lock("report"):
        _, page = Browser(site, "viewer").get(LOCKS, prefix="order")

    assert "order:42" in page
    assert "report" not in page


def test_users_without_permission_see_nothing_and_break_nothing(site: Site, store: holdfast.Client) -> None:
    with store.lock("order:42") as lease:
        query = urllib.parse.urlencode({"name": "order:42", "fence": lease.fence})

        assert Browser(site, "clerk").get(LOCKS)[0] == 403
        assert Browser(site, "viewer").get(f"{BREAK}?{query}")[0] == 403
        assert Browser(site, "viewer").post(f"{BREAK}?{query}", fence=str(lease.fence))[0] == 403
        assert Browser(site, "operator").post(f"{BREAK}?{query}", with_token=False, fence=str(lease.fence))[0] == 403
        assert store.inspect("order:42").holders[0].fence == lease.fence


@pytest.mark.parametrize("name", ["order:42", HOSTILE])
def test_an_operator_breaks_a_lease_by_typing_its_fence(
    project: Project, site: Site, store: holdfast.Client, name: str
) -> None:
    operator = Browser(site, "operator")
    lease = store.lock(name).acquire()
    assert lease is not None
    _, page = operator.get(LOCKS)
    link = re.search(r'href="([^"]*)">Break…', page)
    assert link is not None
    target = unescape(link[1])

    shown = operator.get(target)
    wrong = operator.post(target, fence=str(lease.fence + 1))
    held = store.inspect(name).holders
    done = operator.post(target, fence=f" {lease.fence} ")

    assert shown[0] == 200
    assert "<script>alert" not in shown[1]
    assert wrong[0] == 400
    assert "No lease was broken" in wrong[1]
    assert [holder.fence for holder in held] == [lease.fence]
    assert done[0] == 200
    assert "is broken" in done[1]
    assert store.inspect(name).holders == ()
    assert lease.wait_lost(PATIENCE)
    again = operator.post(target, fence=str(lease.fence))
    assert "had already ended" in again[1]
    code = "from django.contrib.admin.models import LogEntry; print(LogEntry.objects.first().get_change_message())"
    assert project.python(code) == f"Broke the lease with fence {lease.fence} in the store default.\n"


def test_a_store_that_does_not_answer_is_an_error_on_the_page(site: Site) -> None:
    viewer = Browser(site, "viewer")

    status, page = viewer.get(LOCKS, store="away")

    assert status == 503
    assert "errornote" in page
    assert viewer.get(LOCKS, store="unknown")[0] == 404


def test_the_app_needs_no_migration(project: Project) -> None:
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run")
