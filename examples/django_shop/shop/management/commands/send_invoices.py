"""`manage.py send_invoices`: cron may run it on every server; while one of them sends, the others skip it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from holdfast.django import locked
from shop.models import Order


class Command(BaseCommand):
    """Sends the invoices of paid orders."""

    help = __doc__

    def handle(self, **_: Any) -> None:
        sent = send_invoices()
        self.stdout.write("another server sends invoices" if sent is None else f"invoices sent: {sent}")


@locked("invoices", busy="skip")
def send_invoices() -> int:
    orders = Order.objects.filter(invoiced=False).exclude(payment="")
    return sum(send(order) for order in orders)


def send(order: Order) -> int:
    order.invoiced = True
    order.save()
    return 1
