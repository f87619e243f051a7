"""The lock protocols on PostgreSQL: all decisions, and no sockets, threads or clocks."""
