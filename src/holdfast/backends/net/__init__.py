"""Connections, shared by every networked backend: look-ups, sockets, polling. One module for each."""
