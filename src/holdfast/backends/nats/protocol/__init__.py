"""The lock protocol on a key-value bucket of NATS JetStream. Pure."""
