"""Network code shared by all networked backends: name look-ups, sockets, connection pools, polling."""
