"""The admin page of locks: read from the stores, read-only, with a form that breaks a lease by its fence.

Any client of a store chooses the names of locks. They are shown as text only: the templates escape them, and characters
that do not print are written as escape sequences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from holdfast.core.events import logger
from holdfast.core.tickets import LockInfo
from holdfast.django.clients import client
from holdfast.django.models import Lock
from holdfast.errors import HoldfastError
from holdfast.monitor.status import kind_text

_FENCE_DIGITS_MAX = 30
_LIST, _BREAK = "holdfast_lock_changelist", "holdfast_lock_break"  # names of URLs


class Row(NamedTuple):
    """A line of the table: a holder of a lock, or a lock that has only waiters."""

    name: str
    kind: str
    waiters: int
    holder: str = ""
    fence: int | None = None
    since: datetime | None = None
    remaining: float | None = None  # seconds
    meta: str = ""
    break_query: str = ""


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):
    """Two pages: the list, and the form to break a lease."""

    def _has_no_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    # A lock is not a row of a table, so it is not added, changed or deleted here.
    has_add_permission = has_change_permission = has_delete_permission = _has_no_permission

    def has_break_permission(self, request: HttpRequest) -> bool:
        """The permission `holdfast.break_lock`."""
        return bool(request.user.has_perm("holdfast.break_lock"))

    def get_urls(self) -> list[Any]:
        protect = self.admin_site.admin_view
        return [
            path("", protect(self.changelist_view), name=_LIST),
            path("break/", protect(self.break_view), name=_BREAK),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The locks of a store."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        alias, prefix = _alias(request), request.GET.get("prefix", "")
        rows: list[Row] = []
        error, url = "", ""
        try:
            store = client(alias)
            url = store.url
            rows = [row for info in sorted(store.locks(prefix)) for row in _rows(alias, info)]
        except HoldfastError as problem:
            error = printable(str(problem))
        context = {
            **self.admin_site.each_context(request),
            "title": "Locks",
            "opts": self.opts,
            "alias": alias,
            "aliases": list(settings.HOLDFAST),
            "prefix": prefix,
            "url": url,
            "rows": rows,
            "error": error,
            "may_break": self.has_break_permission(request),
            **(extra_context or {}),
        }
        page = "admin/holdfast/lock/change_list.html"
        return TemplateResponse(request, page, context, status=503 if error else 200)

    def break_view(self, request: HttpRequest) -> HttpResponse:
        """Show a lease, and break it if its fence is typed."""
        if not self.has_view_permission(request) or not self.has_break_permission(request):
            raise PermissionDenied
        alias, name = _alias(request), request.GET.get("name", "")
        fence = _fence(request.GET.get("fence", ""))
        if not name or fence is None:
            raise Http404
        error = ""
        row: Row | None = None
        try:
            if request.method == "POST":
                if _fence(request.POST.get("fence", "").strip()) == fence:
                    self._break(request, alias, name, fence)
                    return HttpResponseRedirect(f"{reverse(f'admin:{_LIST}')}?{urlencode({'store': alias})}")
                error = "This is not the fence of the lease. No lease was broken."
            info = client(alias).inspect(name)
            row = next((row for row in _rows(alias, info) if row.fence == fence), None)
        except HoldfastError as problem:
            error = printable(str(problem))
        context = {
            **self.admin_site.each_context(request),
            "title": "Break a lease",
            "opts": self.opts,
            "alias": alias,
            "row": row,
            "error": error,
        }
        return TemplateResponse(request, "admin/holdfast/lock/break.html", context, status=400 if error else 200)

    def _break(self, request: HttpRequest, alias: str, name: str, fence: int) -> None:
        is_broken = client(alias).break_lock(name, fence)
        outcome = "done" if is_broken else "the lease had already ended"
        logger().warning(
            "admin: break of lock %r, fence %s, by %s: %s", name, fence, request.user.get_username(), outcome
        )
        shown = printable(name)
        if not is_broken:
            messages.warning(request, f"The lease of {shown} with fence {fence} had already ended.")
            return
        messages.success(request, f"The lease of {shown} with fence {fence} is broken.")
        self.log_change(request, Lock(name=shown), f"Broke the lease with fence {fence} in the store {alias}.")


def printable(text: str) -> str:
    """The text, in which each character that does not print is replaced by its escape sequence."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def _alias(request: HttpRequest) -> str:
    alias = request.GET.get("store", "default")
    if alias not in settings.HOLDFAST:
        raise Http404
    return str(alias)


def _fence(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= _FENCE_DIGITS_MAX
    return int(text) if is_number else None


def _rows(alias: str, info: LockInfo) -> Iterator[Row]:
    lock = Row(printable(info.name), kind_text(info), len(info.waiters))
    if not info.holders:
        yield lock
    for holder in info.holders:
        query = urlencode({"store": alias, "name": info.name, "fence": holder.fence or 0})
        yield lock._replace(
            holder=printable(", ".join(filter(None, (str(holder), holder.program, holder.agent)))),
            fence=holder.fence,
            since=datetime.fromtimestamp(holder.since, UTC) if holder.since else None,
            remaining=holder.remaining if math.isfinite(holder.remaining) else None,
            meta=printable(json.dumps(dict(holder.meta), ensure_ascii=False)) if holder.meta else "",
            break_query=query if holder.fence else "",
        )
