"""The lock protocols on SQLite: all decisions, and no sockets, threads or clocks."""
