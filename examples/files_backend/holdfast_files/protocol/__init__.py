"""The declarations of the backend, without files or clocks."""
