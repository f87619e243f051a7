"""A model of PostgreSQL, as far as holdfast's tables and steps need it, in virtual time.

tables    the tables, and each step of schema.sql and protocol.py
port      a client's way there: statements, and hints that are heard or missed
gates     the advisory locks of method=advisory, and a port and a server that have them
server    the server in its world: restarts, failovers, clocks, the reaper
"""
