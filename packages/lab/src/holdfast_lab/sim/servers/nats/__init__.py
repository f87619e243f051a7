"""A model of a key-value bucket of NATS: entries with sequence numbers, expiry in two steps, notifications.

    store.py    the answers of a healthy bucket, without time or network. A test sends the same requests to a real
                server and compares the answers
    server.py   the store in a simulated world: entries expire by the clock of the leader, which changes at a restart
    port.py     the port of a client, for the production protocol

The model has one server. tests/integration/nats covers faults between the servers of a real cluster.
"""
