"""A model of memcached: what it answers to bytes, its coarse clock, what it forgets.

machine.py is the server alone, and is compared with a real one byte by byte (tests/sim/test_memcached_model.py);
server.py is it in its world; port.py is the way there.
"""
