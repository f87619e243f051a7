"""The lock protocols on memcached: all decisions, and no sockets, threads or clocks."""
