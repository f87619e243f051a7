"""The lock protocol on a key-value bucket of NATS JetStream: all decisions, and no sockets, threads or clocks."""
