"""Requests that need a lock: each reads the counter, and writes it after other requests had time to read it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from django.http import HttpRequest, JsonResponse

import holdfast.django
from tests.integration.django.project.shop.models import Counter

PAUSE = 0.02  # seconds between the read and the write


def increment(_: HttpRequest) -> JsonResponse:
    with holdfast.django.lock("counter") as lease:
        counter = Counter.objects.get(name="orders")
        time.sleep(PAUSE)
        counter.value += 1
        counter.save()
        return JsonResponse({"value": counter.value, "fence": lease.fence, "pid": os.getpid()})


@holdfast.django.locked("counter")
async def increment_async(_: HttpRequest) -> JsonResponse:
    counter = await Counter.objects.aget(name="orders")
    await asyncio.sleep(PAUSE)
    counter.value += 1
    await counter.asave()
    client = holdfast.django.async_client()
    return JsonResponse({"value": counter.value, "pid": os.getpid(), "client": id(client)})


@holdfast.django.once("charge:{order}", result=True)
def _charge(order: int) -> dict[str, Any]:
    return {"order": order, "pid": os.getpid(), "at": time.time_ns()}


def charge(_: HttpRequest, order: int) -> JsonResponse:
    return JsonResponse(_charge(order))


def held(_: HttpRequest, name: str) -> JsonResponse:
    """Whether another process holds the lock of this name."""
    return JsonResponse({"held": bool(holdfast.django.client().inspect(name).holders)})
