"""A model of N servers that know nothing of each other, each one a model of Redis with faults of its own.

node    one of them: its clock, its restarts, who it says it is
port    a client's way to all of them: asked at once, each over a link of its own
server  all of them together, as the world sees them
votes   who has a majority, and who waits
rules   the council, as the URL would give it
"""
