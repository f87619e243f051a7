"""A model of etcd: keys with revisions, leases, transactions, watches.

    store.py    the answers of a healthy cluster, without time or network. A test sends the same requests to a real
                etcd and compares the answers
    server.py   the store in a simulated world: leases expire, watches are notified, restarts renew all leases
    port.py     the port of a client, for the production protocols

The model has one server. tests/integration/etcd covers faults between the members of a real cluster.
"""
