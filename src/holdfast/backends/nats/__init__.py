"""nats://, natss://: locks in a key-value bucket of NATS. The protocol is spoken here: no driver is needed."""
