"""Hazard: the pages in a real browser execute a name, hide a problem, or cannot be used on a phone or by keyboard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from holdfast.primitives import Primitive
from tests.integration.dashboard.conftest import TOKEN, OpenPage, Serve, Site, Store, deadlock
from tests.support.processes import Worker, WorkerPool

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = {
    "script": "<script>document.title='ran'</script>",
    "image": '"><img src=x onerror="document.title=\'ran\'">',
    "bidi": "invoice\u202egnp.exe\u2066\u200b",
    "newlines": "two\nlines\r\n\ttab\u2028",
    "long": "x" * 512,
    "template": "${document.title='ran'}{{constructor}}",
    "url": "javascript:document.title='ran'",
}


def row(page: Page, name: str) -> Any:
    return page.locator("#rows tr").filter(has_text=name)


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_follows_the_store(site: Site, store: Store, holder: Worker, open_page: OpenPage) -> None:
    holder.call("impersonate", host="web-3", program="/srv/app/checkout.py")
    fence = holder.call("hold", lock="order:42")["fence"]
    page = open_page(site)

    line = row(page, "order:42")
    line.wait_for()
    assert {f"web-3/{holder.pid}", str(fence)} <= set(re.split(r"\s+", line.inner_text()))
    assert "checkout.py" in line.inner_text()
    assert page.locator("#held").inner_text() == "1"

    holder.call("wait", lock="order:42")
    expect(page.locator("#waiting")).to_have_text("1")
    holder.call("release", lock="order:42")
    row(page, str(fence)).wait_for(state="detached")
    assert "released" in page.locator("#changes").inner_text()
    assert page.evaluate("location.search") == ""  # the token is not in the address any more
    assert TOKEN not in page.content()


def test_filter_sort_and_pause(site: Site, store: Store, holder: Worker, open_page: OpenPage) -> None:
    holder.call("hold_many", locks=["order:1", "order:2", "report"])
    holder.call("wait", lock="report")
    store.await_waiters("report", 1)
    page = open_page(site)
    row(page, "report").wait_for()
    names = page.locator("#rows .lock-link")

    assert names.first.inner_text() == "report"  # the longest wait is first
    page.locator("th[data-sort=name] button").click()
    expect(names).to_have_text(["order:1", "order:2", "report"])
    assert page.locator("th[data-sort=name]").get_attribute("aria-sort") == "ascending"
    page.locator("#filter").fill("ORDER :2")
    expect(names).to_have_count(1)
    assert page.locator("#result").inner_text() == "1 of 3 locks"
    page.locator("#filter").fill("")
    page.locator("#contended").check()
    expect(names).to_have_count(1)
    page.locator("#contended").uncheck()
    page.locator("#pause").click()
    with site.stream() as stream:
        stream.next()
        holder.call("hold", lock="later")
        stream.until(lambda message: any(lock["name"] == "later" for lock in message.get("locks", ())))
    assert row(page, "later").count() == 0
    page.locator("#pause").click()
    row(page, "later").wait_for()


def test_a_page_reports_a_lost_connection_and_keeps_its_rows(
    serve: Serve, store: Store, holder: Worker, open_page: OpenPage
) -> None:
    holder.call("hold", lock="a")
    site = serve()
    page = open_page(site, console=False)  # the browser logs requests that fail
    row(page, "a").wait_for()
    context = page.context

    context.set_offline(offline=True)
    site.stop()
    page.locator("#banner").wait_for()

    assert "connection to the dashboard is lost" in page.locator("#banner").inner_text()
    assert page.locator("#live").get_attribute("data-state") == "lost"
    assert row(page, "a").count() == 1


def test_a_page_reports_an_unavailable_store(site: Site, store: Store, holder: Worker, open_page: OpenPage) -> None:
    holder.call("hold", lock="a")
    page = open_page(site)
    row(page, "a").wait_for()

    store.path.rename(store.path.with_suffix(".away"))
    store.path.mkdir()
    page.locator("#banner").wait_for()
    text = page.locator("#banner").inner_text()
    store.path.rmdir()
    store.path.with_suffix(".away").rename(store.path)
    page.locator("#banner").wait_for(state="hidden")

    assert "The store is not available" in text


# ── untrusted text ───────────────────────────────────────────────────────────────────────────────────────────────


# By default markup, characters that reverse the direction, and a link: the same code shows the others.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=kind, marks=[] if kind in {"image", "bidi", "url"} else [pytest.mark.extra])
        for kind, name in HOSTILE.items()
    ],
)
def test_hostile_names_programs_and_meta_are_text(
    serve: Serve, store: Store, holder: Worker, open_page: OpenPage, name: str
) -> None:
    short = name[:100]
    holder.call("impersonate", host=short, program=f"/srv/{short}", thread=short)
    holder.call("hold", lock=name, meta={name: name})
    holder.call("wait", lock=name, meta={name: name})
    store.await_waiters(name, 1)
    site = serve(allow_break=True)

    table = open_page(site)
    table.locator("#rows tr").wait_for()
    table.locator("#rows .lock-link").click()
    table.wait_for_url("**/lock?name=*")
    table.locator(".holder-card").wait_for()
    table.locator("#waiters tr").wait_for()
    shown = table.locator("#name").inner_text()
    table.get_by_role("button", name="Break…").click()
    table.get_by_role("button", name="Cancel").click()
    waits = open_page(site, "waits")
    waits.locator(".graph .node").first.wait_for()

    for page in (table, waits):
        assert page.title() != "ran"
        assert page.locator("main script, main img, main iframe").count() == 0
        text = page.locator("main").inner_text()
        assert not set(text) & set("\u202e\u2066\u200b\u2028\r")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    escaped = name.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    for character in "\u202e\u2066\u200b\u2028":
        escaped = escaped.replace(character, f"\\u{ord(character):04x}")
    assert shown == escaped


def test_the_content_security_policy_is_enforced(site: Site, open_page: OpenPage) -> None:
    page = open_page(site, console=False)

    refused = page.evaluate(
        """() => {
            try { document.body.innerHTML = '<b>text</b>'; } catch (error) { return error.name; }
            return 'allowed';
        }"""
    )

    assert refused == "TypeError"  # Trusted Types: no text is parsed as HTML


# ── the page of a lock ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_of_a_lock_shows_its_queue_and_draws_its_holders(
    site: Site, store: Store, pool: WorkerPool, open_page: OpenPage
) -> None:
    first, second = pool.start_many(2, store.url)
    first.call("impersonate", host="web-1")
    second.call("impersonate", host="web-2")
    fence = first.call("hold", lock="a/b c", meta={"order": 42})["fence"]
    second.call("wait", lock="a/b c")
    store.await_waiters("a/b c", 1)
    page = open_page(site, f"lock?name={quote('a/b c')}")

    page.locator(".holder-card").wait_for()
    card = page.locator(".holder-card").inner_text()
    assert f"web-1/{first.pid}" in card
    assert str(fence) in card
    assert re.search(r"order\s+42", card)
    assert f"web-2/{second.pid}" in page.locator("#waiters tr").inner_text()
    assert page.locator(".lease").count() == 1

    first.call("release", lock="a/b c")
    page.locator(".lease").nth(1).wait_for()
    titles = page.locator(".lease title").all_text_contents()
    assert f"web-1/{first.pid}, fence {fence}" in titles[0]
    assert f"web-2/{second.pid}" in titles[1]
    page.locator("#no-queue").wait_for()
    second.call("release", lock="a/b c")
    page.locator("#state[data-state=free]").wait_for()
    assert page.locator(".lease").count() == 2
    assert page.get_by_role("button", name="Break…").count() == 0


def test_a_lease_is_broken_only_by_typing_its_fence(
    serve: Serve, store: Store, holder: Worker, open_page: OpenPage
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    page = open_page(serve(allow_break=True), "lock?name=a")

    page.get_by_role("button", name="Break…").click()
    page.locator("#typed").fill(str(fence + 1))
    page.get_by_role("button", name="Break the lease").click()
    assert "not the fence" in page.locator("#confirm-error").inner_text()
    assert len(store.client.inspect("a").holders) == 1
    page.locator("#typed").fill(str(fence))
    page.keyboard.press("Enter")

    page.locator("#state[data-state=free]").wait_for()
    assert "is broken" in page.locator("#toast").inner_text()
    assert store.client.inspect("a").holders == ()
    assert holder.call("lost", lock="a")["lost"] == [fence]


# ── the other pages ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_graph_shows_a_deadlock(site: Site, store: Store, open_page: OpenPage) -> None:
    with deadlock(store.client):
        page = open_page(site, "waits")
        page.locator("#cycle-card li li").nth(1).wait_for()
        page.locator(".arrow.cycle").nth(1).wait_for()
        text = page.locator("#cycle-card").inner_text()
        assert page.locator(".node.cycle").count() == 2
        assert page.locator("#cycle-badge").inner_text() == "1"
        assert "(a first) waits for b" in text
        assert "(b first) waits for a" in text


def test_the_store_page_explains_the_guarantees(site: Site, open_page: OpenPage) -> None:
    page = open_page(site, "store")

    page.locator("#guarantees dt").first.wait_for()
    assert "durable-authority" in page.locator("#guarantees").inner_text()
    assert page.locator("#primitives .has").count() + page.locator("#primitives .lacks").count() == len(Primitive)
    assert page.locator("#warnings li").count() == 1


def test_a_browser_without_a_cookie_signs_in_with_the_form(site: Site, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    assert page.goto(site.url).status == 401

    page.get_by_label("Token").fill("wrong-token-wrong-token")
    page.keyboard.press("Enter")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")

    page.wait_for_selector("#live[data-state=live]")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    context.close()


# ── phone, keyboard, colours ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["", "lock?name=order", "waits", "store"])
def test_pages_fit_a_phone(site: Site, store: Store, holder: Worker, open_page: OpenPage, path: str) -> None:
    holder.call("hold", lock="order", meta={"order": "x" * 300})
    holder.call("wait", lock="order")
    store.await_waiters("order", 1)
    page = open_page(site, path, viewport={"width": 375, "height": 812})
    page.locator("#rows tr, .holder-card, .graph .node, #guarantees dt").first.wait_for()

    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_the_table_can_be_used_by_keyboard(site: Site, holder: Worker, open_page: OpenPage) -> None:
    holder.call("hold_many", locks=["a", "b"])
    page = open_page(site)
    row(page, "b").wait_for()

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.className") == "lock-link"
    outline = page.evaluate("getComputedStyle(document.activeElement, '::after').outlineStyle")
    page.keyboard.press("ArrowDown")
    name = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/lock?name={name}")

    assert outline == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(site: Site, holder: Worker, open_page: OpenPage, scheme: str) -> None:
    holder.call("hold", lock="a")
    page = open_page(site, color_scheme=scheme)
    row(page, "a").wait_for()

    ratios = page.evaluate(CONTRASTS)

    assert len(ratios) > 20
    assert min(ratio for ratio, _ in ratios) >= 4.5, min(ratios)


# The contrast of each text with the nearest background (WCAG 2.2, 1.4.3).
CONTRASTS = """() => {
    const parse = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => {
        const part = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
    };
    const background = (node) => {
        for (; node; node = node.parentElement) {
            const color = parse(getComputedStyle(node).backgroundColor);
            if (color.length < 4 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    const results = [];
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if (!own || !node.checkVisibility() || node.disabled) continue;
        const [a, b] = [parse(getComputedStyle(node).color), background(node)].map(luminance).sort((x, y) => y - x);
        results.push([(a + 0.05) / (b + 0.05), node.textContent]);
    }
    return results;
}"""
