"""The lock protocols on ZooKeeper: all decisions, and no sockets, threads or clocks."""
