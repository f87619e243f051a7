"""Requests that must not run twice at the same time for the same product or order."""

from __future__ import annotations

import time
import uuid

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from holdfast.django import lock, once
from shop.models import Order, Product


@require_POST
def buy(_: HttpRequest, sku: str) -> HttpResponse:
    # The request to the warehouse is made under the lock, so no transaction of the database has to stay open for it.
    with lock(f"stock:{sku}", timeout=10) as lease:
        product = Product.objects.get(sku=sku)
        if product.stock == 0:
            return JsonResponse({"error": "sold out"}, status=409)
        reserve_in_warehouse(sku, lease.fence)
        product.stock -= 1
        product.save()
        order = Order.objects.create(product=product)
    return JsonResponse({"order": order.pk, "left": product.stock})


@require_POST
def pay(_: HttpRequest, order_id: int) -> HttpResponse:
    return JsonResponse({"order": order_id, "payment": charge(order_id)})


@once("charge:{order_id}", result=True)
def charge(order_id: int) -> str:
    """Charge the card. A second click, on any server, gets the result of the first one."""
    payment = uuid.uuid4().hex
    Order.objects.filter(pk=order_id).update(payment=payment)
    return payment


def reserve_in_warehouse(sku: str, fence: int) -> None:
    """A request to another system. It refuses a fence that is older than the newest one that it has seen."""
    time.sleep(0.01)
    print(f"reserved {sku} with fence {fence}")
