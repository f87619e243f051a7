"""The lock protocols on Redis: all decisions, and no sockets, threads or clocks."""
