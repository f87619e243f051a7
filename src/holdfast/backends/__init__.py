"""One folder for each store, all of the same shape: `config.py` (the URL and its options), `port.py` (the operations of
the server), `protocol/` (the verbs of the engine over that port), `io/` (the port on connections, for threads and for
asyncio), and Lua or SQL texts in `lua/` or `sql/`. `net/` and the modules here are shared by several stores.
"""
