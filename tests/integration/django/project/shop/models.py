"""A counter that two requests at once would corrupt."""

from __future__ import annotations

from django.db import models


class Counter(models.Model):
    """A value that is read, and written later."""

    name = models.CharField(max_length=50, unique=True)
    value = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.name)
