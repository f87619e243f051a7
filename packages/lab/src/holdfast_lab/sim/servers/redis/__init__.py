"""A model of Redis that runs the shipped scripts in virtual time.

keyspace  values and their expiry
commands  the commands of clients and scripts
lua       the interpreter, and Redis's conversion rules
machine   all of these: a server without a world
port      the port of a client: requests, and notifications that may be lost
server    the server in its world: restarts, failovers, clocks
layouts   the tickets in the keys of each protocol
"""
