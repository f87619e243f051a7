"""A model without a table. It gives the admin page of locks its entry in the index, its permissions and its log."""

from __future__ import annotations

from django.db import models


class Lock(models.Model):
    """A lock in use. The admin page reads locks from their store, not from a database."""

    name = models.CharField(max_length=255, primary_key=True)

    class Meta:
        """No migration creates a table for it; `migrate` creates the permissions."""

        managed = False
        default_permissions = ("view",)
        permissions = (("break_lock", "Can break a lease"),)

    def __str__(self) -> str:
        return str(self.name)
