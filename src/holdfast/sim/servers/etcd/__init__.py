"""A model of etcd: keys with revisions, leases, transactions, watches.

    store.py    what one member of a healthy cluster answers, without time or network: kept honest by a test that has a
                real etcd answer the same requests
    server.py   the same in a world: leases run out, watches hear of it, restarts give all leases their whole ttl
    port.py     the way of a client to it, for the protocols that ship

The cluster is one server here. What its members do among themselves, tests/integration/etcd has to show.
"""
