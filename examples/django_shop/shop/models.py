"""Products with a stock, and their orders."""

from __future__ import annotations

from django.db import models


class Product(models.Model):
    """Something to buy, as long as the stock lasts."""

    sku = models.CharField(max_length=20, unique=True)
    stock = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.sku)


class Order(models.Model):
    """One piece of a product."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    payment = models.CharField(max_length=40, default="")
    invoiced = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.product}"
