"""The lock protocols on Redlock: all decisions, and no sockets, threads or clocks."""
