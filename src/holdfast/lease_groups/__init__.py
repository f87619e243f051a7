"""Several locks as one: the objects of both shells. How they are taken is in core/lease_groups.py."""
