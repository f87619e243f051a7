"""The requests of the shop."""

from __future__ import annotations

from django.urls import path

from shop import views

urlpatterns = [
    path("buy/<str:sku>/", views.buy),
    path("pay/<int:order_id>/", views.pay),
]
