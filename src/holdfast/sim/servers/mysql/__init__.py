"""A model of MySQL, as far as holdfast's tables and steps need it, in virtual time.

tables    locks and tickets, and each statement and procedure on them; marks: theirs
port      a client's way there
server    the server in its world: restarts, failovers, clocks, the reaper
"""
