"""Hazard: another site, another user or a program of the network reads the dashboard or breaks a lease with it."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter
from starlette.applications import Starlette

import holdfast
from holdfast.dashboard import dashboard
from holdfast.dashboard.pages import PAGES, STATIC
from tests.integration.dashboard.conftest import TOKEN, Serve, Site, Store
from tests.support.processes import Worker, eventually

OTHER_TOKEN = TOKEN[::-1]
PATHS = ["/", "/lock?name=a", "/waits", "/store", "/api/session", "/api/stream", "/api/locks", "/api/store", "/metrics"]


# ── the token ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [*PATHS, "/api/break", "/nothing"])
@pytest.mark.parametrize("token", [None, "wrong-token-wrong-token", ""])
def test_a_request_without_the_token_is_refused(site: Site, path: str, token: str | None) -> None:
    answer = site.request(path, token=token)

    assert answer.status == 401
    assert "sqlite" not in answer.body


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(site: Site) -> None:
    answer = site.request(f"/?token={TOKEN}", token=None)

    cookie = answer.headers["set-cookie"]
    assert answer.status == 200
    assert TOKEN not in cookie + answer.body
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.lower().split("; "))
    assert site.request("/", token=None, cookie=cookie.partition(";")[0]).status == 200
    assert site.request("/", token=None, cookie=cookie.partition(";")[0][:-1]).status == 401


def test_a_wrong_token_in_the_address_gives_no_cookie(site: Site) -> None:
    answer = site.request("/?token=wrong-token-wrong-token", token=None, accept="text/html")

    assert answer.status == 401
    assert "set-cookie" not in answer.headers
    assert "<form" in answer.body


@pytest.mark.parametrize(
    ("body", "origin", "status"),
    [
        (f"token={TOKEN}", None, 303),
        ("token=wrong-token-wrong-token", None, 401),
        ("", None, 401),
        (f"token={TOKEN}", "http://evil.example", 403),
        (f"token={'x' * 10_000}", None, 413),
    ],
)
def test_the_form_takes_the_token_from_pages_of_this_server_only(
    site: Site, body: str, origin: str | None, status: int
) -> None:
    answer = site.request("/", method="POST", token=None, body=body, origin=origin or site.origin)

    assert answer.status == status
    assert ("set-cookie" in answer.headers) == (status == 303)


def test_two_dashboards_of_one_host_have_different_cookies(serve: Serve) -> None:
    sites = serve(), serve(token=OTHER_TOKEN)

    names = {
        site.request(f"/?token={token}", token=None).headers["set-cookie"].partition("=")[0]
        for site, token in zip(sites, (TOKEN, OTHER_TOKEN), strict=True)
    }

    assert len(names) == 2


def test_a_short_token_is_refused(store: Store) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="16 characters"):
        dashboard(store.client, token=TOKEN[:15])


def test_without_a_token_every_request_to_an_allowed_host_is_answered(serve: Serve) -> None:
    site = serve(token=None)

    assert site.request("/api/locks", token=None).json == []


# ── hosts and headers ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::2]", "\x7f"]
)
@pytest.mark.parametrize("path", [*PATHS, "/static/style.css", f"/?token={TOKEN}"])
def test_a_foreign_host_is_refused(site: Site, host: str, path: str) -> None:
    answer = site.request(path, host=host)

    assert answer.status in (400, 421)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:8080"])
def test_the_names_of_this_machine_are_allowed(site: Site, host: str) -> None:
    assert site.request("/", host=host).status == 200


def test_other_hosts_can_be_allowed(serve: Serve) -> None:
    assert serve(hosts=["locks.example.com"]).request("/", host="locks.example.com").status == 200
    assert serve(hosts=["locks.example.com"]).request("/").status == 421
    assert serve(hosts=["*"]).request("/", host="any.example").status == 200


@pytest.mark.parametrize("path", [*PATHS[:5], "/api/locks", "/static/locks.js", "/nothing"])
def test_every_response_has_the_headers_that_restrict_it(site: Site, path: str) -> None:
    headers = site.request(path).headers

    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["trusted-types"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert headers["cache-control"] == "no-store" or path.startswith("/static")


def test_pages_have_no_inline_script_or_style_and_nothing_of_other_sites() -> None:
    for name, page in PAGES.items():
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)|(?:src|href)=\"(?:https?:)?//", page), (
            name
        )
    for path in STATIC.iterdir():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert not re.search(r"url\((?!#)|@import", text), path
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, path


def test_pages_name_only_files_that_exist() -> None:
    for page in PAGES.values():
        assert all((STATIC / name).exists() for name in re.findall(r'"static/([^"]+)"', page))
    for path in STATIC.glob("*.js"):
        assert all((STATIC / name).exists() for name in re.findall(r'from "\./([^"]+)"', path.read_text()))


# ── break and revoke ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def breaking_site(serve: Serve) -> Site:
    return serve(allow_break=True)


def test_a_break_with_the_right_fence_ends_the_lease_and_is_logged(
    breaking_site: Site, store: Store, holder: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    fence = holder.call("hold", lock="a\n<b>")["fence"]

    answer = breaking_site.post("/api/break", {"lock": "a\n<b>", "fence": str(fence)})

    assert (answer.status, answer.json) == (200, {"done": True})
    assert store.client.inspect("a\n<b>").holders == ()
    assert f"dashboard: break of lock 'a\\n<b>', fence {fence}, from 127.0.0.1: done" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"x_csrf_token": ""},
        {"x_csrf_token": "0" * 64},
    ],
)
@pytest.mark.parametrize("verb", ["break", "revoke"])
def test_a_request_of_another_site_or_without_the_csrf_token_changes_nothing(
    breaking_site: Site, store: Store, holder: Worker, headers: dict[str, str], verb: str
) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    answer = breaking_site.post(f"/api/{verb}", {"lock": "a", "fence": str(fence)}, **headers)

    assert answer.status == 403
    assert [lease.fence for lease in store.client.inspect("a").holders] == [fence]


@pytest.mark.parametrize(
    "fields",
    [
        {"lock": "a", "fence": "1"},
        {"lock": "b", "fence": "FENCE"},
        {"lock": "a"},
        {"lock": "a", "fence": None},
        {"lock": "a", "fence": ""},
        {"lock": "a", "fence": "FENCE; 7"},
        {"lock": "a", "fence": "-FENCE"},
        {"lock": "", "fence": "FENCE"},
        {"lock": ["a"], "fence": "FENCE"},
        {"lock": "x" * 513, "fence": "FENCE"},
        {"lock": "x" * 20_000, "fence": "FENCE"},
        ["a", "FENCE"],
        None,
    ],
)
def test_a_break_with_a_wrong_fence_or_name_changes_nothing(
    breaking_site: Site, store: Store, holder: Worker, fields: object
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    fields = json.loads(json.dumps(fields).replace("FENCE", str(fence)))

    answer = breaking_site.post("/api/break", fields)

    assert answer.status in (400, 409)
    assert answer.json["error"]
    assert [lease.fence for lease in store.client.inspect("a").holders] == [fence]


def test_a_break_that_is_not_json_changes_nothing(breaking_site: Site, store: Store, holder: Worker) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    answer = breaking_site.post("/api/break", {"lock": "a", "fence": str(fence)}, content_type="text/plain")

    assert answer.status == 400
    assert len(store.client.inspect("a").holders) == 1


def test_a_break_without_a_session_is_refused(breaking_site: Site) -> None:
    assert breaking_site.request("/api/break", method="POST", token=None, origin=breaking_site.origin).status == 401


@pytest.mark.parametrize("verb", ["break", "revoke"])
def test_a_read_only_dashboard_has_no_csrf_token_and_no_route_that_changes_anything(
    site: Site, store: Store, holder: Worker, verb: str
) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    answer = site.post(f"/api/{verb}", {"lock": "a", "fence": str(fence)})

    assert site.request("/api/session").json["csrf_token"] is None
    assert answer.status == 404
    assert len(store.client.inspect("a").holders) == 1


def test_a_revoke_requests_the_release(breaking_site: Site, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", revocable=True, ttl=1)["fence"]

    assert breaking_site.post("/api/revoke", {"lock": "a", "fence": str(fence)}).status == 200

    eventually(lambda: bool(holder.call("revoked", lock="a")["revoked"] == [fence]))
    assert breaking_site.post("/api/revoke", {"lock": "a", "fence": "1"}).status == 409


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_list_of_locks_has_the_fields_of_ls(site: Site, store: Store, holder: Worker) -> None:
    fence = holder.call("hold", lock="<script>alert(1)</script>", meta={"order": 42})["fence"]
    holder.call("wait", lock="<script>alert(1)</script>")
    store.await_waiters("<script>alert(1)</script>", 1)

    answer = site.request("/api/locks")

    (lock,) = answer.json
    assert answer.headers["content-type"] == "application/json"
    assert (lock["lock"], lock["kind"], len(lock["waiters"])) == ("<script>alert(1)</script>", "lock", 1)
    assert (lock["holders"][0]["fence"], lock["holders"][0]["meta"]) == (fence, {"order": 42})


def test_the_store_page_has_guarantees_warnings_and_primitives(site: Site, store: Store) -> None:
    document = site.request("/api/store").json

    values = {guarantee["title"]: guarantee["value"] for guarantee in document["guarantees"]}
    assert values["Exclusion"] == "durable-authority"
    assert document["warnings"] == []
    assert {"name": "rwlock", "missing": None} in document["primitives"]


def test_metrics_of_the_client_are_exported_for_prometheus(store: Store) -> None:
    with Site(dashboard(store.client, token=TOKEN)) as site, store.client.lock("order:42"):
        answer = site.request("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert re.search(r'^holdfast_lock_held\{client="sqlite:.*",group="order:\*"\} 1.0$', answer.body, re.MULTILINE)


def test_metrics_of_another_registry_can_be_exported(serve: Serve) -> None:
    registry = CollectorRegistry()
    Counter("orders", "of a program", registry=registry).inc()

    assert "orders_total 1.0" in serve(registry=registry).request("/metrics").body


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
def test_the_app_mounts_into_another_app_under_a_path(store: Store, holder: Worker, framework: type[Starlette]) -> None:
    holder.call("hold", lock="a")
    app = framework()
    app.mount("/ops/locks", dashboard(store.client, token=TOKEN))

    with Site(app) as site:
        cookie = site.request(f"/ops/locks/?token={TOKEN}", token=None).headers["set-cookie"]
        assert "Path=/ops/locks/" in cookie
        assert site.request("/ops/locks/", token=None, cookie=cookie.partition(";")[0]).status == 200
        assert site.request("/ops/locks/static/locks.js", token=None).status == 200
        assert [lock["lock"] for lock in site.request("/ops/locks/api/locks").json] == ["a"]
        assert site.request("/ops/locks/", token=None).status == 401


async def test_an_async_client_is_accepted(store: Store, holder: Worker) -> None:
    holder.call("hold", lock="a")
    async with holdfast.AsyncClient(store.url) as client:
        with Site(dashboard(client, token=TOKEN)) as site:
            answer = await asyncio.to_thread(site.request, "/api/locks")

    assert [lock["lock"] for lock in answer.json] == ["a"]
