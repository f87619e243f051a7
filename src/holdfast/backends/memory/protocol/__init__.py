"""The lock protocols on the memory store: all decisions, and no sockets, threads or clocks."""
