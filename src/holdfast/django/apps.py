"""The Django app: its system checks, and its reaction to settings that a test changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.signals import setting_changed

from holdfast.django.clients import close_clients, make_client
from holdfast.errors import HoldfastError
from holdfast.guarantees import Scope


class HoldfastConfig(AppConfig):
    """The app `holdfast.django`; its label is `holdfast`."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "holdfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        checks.register(check_stores, "holdfast")
        setting_changed.connect(_on_setting_changed)


def check_stores(**_: Any) -> list[Any]:
    """Check each store of the setting HOLDFAST, as far as that is possible without a request."""
    setting = getattr(settings, "HOLDFAST", None)
    aliases = {"default": None, **dict.fromkeys(map(str, setting))} if isinstance(setting, Mapping) else ["default"]
    return [message for alias in aliases for message in _check_store(alias)]


def _check_store(alias: str) -> list[Any]:
    try:
        with make_client(alias) as client:  # this sends nothing
            scope, url = client.guarantees.scope, client.url
    except HoldfastError as error:
        return [checks.Error(str(error), obj=f"HOLDFAST[{alias!r}]", id="holdfast.E001")]
    if settings.DEBUG or scope is Scope.NETWORK:
        return []
    excluded = "the threads of one process" if scope is Scope.PROCESS else "the processes of one user on one machine"
    return [
        checks.Warning(
            f"The locks of {url} exclude only {excluded}.",
            hint=f"Give HOLDFAST[{alias!r}] a store that all servers share, or silence this for a single server.",
            obj=f"HOLDFAST[{alias!r}]",
            id="holdfast.W001",
        )
    ]


def _on_setting_changed(*, setting: str, **_: Any) -> None:
    if setting in {"HOLDFAST", "DATABASES"}:
        close_clients()
