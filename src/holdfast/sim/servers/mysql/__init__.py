"""A model of MySQL, as far as holdfast's tables and steps need it, in virtual time.

tables    the two tables, and each statement and procedure on them
port      a client's way there
server    the server in its world: restarts, failovers, clocks, the reaper
"""
