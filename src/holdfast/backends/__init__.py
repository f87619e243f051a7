"""One folder per store, each with the same four files: port.py (the verbs of that server), protocol.py (what the engine
asks for, over that port), blocking.py and aio.py (the port on a driver for threads and for asyncio). Beside the folders
lies what several of them share.
"""
