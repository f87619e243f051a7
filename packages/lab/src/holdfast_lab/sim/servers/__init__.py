"""Models of servers: the store behind a port, in virtual time, with the faults that the real one can have."""
