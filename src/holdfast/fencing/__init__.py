"""Guards for the resource that a lock protects: they refuse the fence of a lease that is over.

A lock cannot stop a process that was paused while it held it and goes on after its ttl. The resource can: every lease
has a fence, a number greater than those of all leases before it, and a resource that remembers the greatest one it
has seen knows who comes too late.

    holdfast.fencing.sql      PostgreSQL, MySQL, SQLite: in the caller's own transaction
    holdfast.fencing.redis    a script, or WATCH and MULTI
    holdfast.fencing.files    a file and its fence beside it
    holdfast.fencing.http     a header, and middleware for WSGI and ASGI

All follow one rule. A smaller fence than the greatest seen is refused with StaleFence and nothing is written; an equal
one passes, because a lease may write many times; a greater one passes and is remembered *with or before* the write.

Two limits. Fences compare only within one lock of one backend: a resource belongs to one lock, and when that lock
moves to another store its guards have to be reset. And they tell exclusive leases apart (`lock`, `rwlock.write`):
readers and holders of a semaphore are in together, so the fence of one says nothing about another.

Nothing here imports a driver: what is passed in brings its own.
"""
