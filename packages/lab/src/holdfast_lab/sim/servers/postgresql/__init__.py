"""A model of PostgreSQL with holdfast's tables and functions, in virtual time.

tables           the tables, each function of schema.sql and each statement of protocol/
port             the connections of a client: statements, and notifications that arrive or are lost
waiter_sessions  the advisory locks of method=advisory, and a port and a server with them
server           the server in its world: restarts, failovers, clocks, the reaper
"""
