"""The pages of the project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from tests.integration.django.project.shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("increment/", views.increment),
    path("increment-async/", views.increment_async),
    path("charge/<int:order>/", views.charge),
    path("held/<str:name>/", views.held),
]
