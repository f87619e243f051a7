"""etcd://: locks as ordered keys under leases of an etcd cluster, over the JSON gateway of its v3 API."""
