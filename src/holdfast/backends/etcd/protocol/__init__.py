"""The lock protocols on etcd: all decisions, and no sockets, threads or clocks."""
