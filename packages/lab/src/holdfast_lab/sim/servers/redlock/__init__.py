"""A model of several independent servers. Each is a model of Redis with its own faults.

node    one server: its clock, its restarts, its run_id
port    the port of a client: requests to all nodes at once, each over its own link
server  all nodes together, as the world sees them
votes   reads votes and waiters from the nodes
"""
