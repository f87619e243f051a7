"""A model of Redis that runs the scripts that ship, in virtual time.

keyspace  values, and when they expire
commands  what a client or a script can ask for
lua       the interpreter, and Redis's rules of conversion
machine   these together: a server without a world
port      a client's way there: requests, and hints that are heard or missed
server    the server in its world: restarts, failovers, clocks
layouts   tickets, as each protocol keeps them
"""
