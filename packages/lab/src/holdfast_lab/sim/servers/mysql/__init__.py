"""A model of MySQL with holdfast's tables and procedures, in virtual time.

tables           locks and tickets, and each statement and procedure on them
values           registers and records
port             the connections of a client
waiter_sessions  the row locks of method=row, and a port and a server with them
server           the server in its world: restarts, failovers, clocks, the reaper
"""
