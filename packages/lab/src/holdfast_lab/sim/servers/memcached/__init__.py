"""A model of memcached: its replies, its coarse clock and its loss of data.

machine.py is the server alone, compared with a real one byte by byte (tests/sim/test_memcached_model.py). server.py
puts it into a simulated world. port.py is a client's connection to it.
"""
