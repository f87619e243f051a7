"""Guards for the resource that a lock protects: they reject the fence of a lease that has ended.

A lock cannot stop a process that was paused while it held the lock and continues after its ttl. The resource can: every
lease has a fence, a number greater than those of all leases before it, and a resource that stores the greatest fence it
has seen can reject late writes.

    holdfast.fencing.sql      PostgreSQL, MySQL, SQLite: in the transaction of the caller
    holdfast.fencing.redis    a script, or WATCH and MULTI
    holdfast.fencing.files    a file and its fence beside it
    holdfast.fencing.http     a header, and middleware for WSGI and ASGI

All follow one rule. A fence smaller than the greatest seen raises StaleFence, and nothing is written; an equal one
passes, because a lease may write many times; a greater one passes and is stored *with or before* the write.

There are two limits. Fences compare only within one lock of one backend: a resource belongs to one lock, and when that
lock moves to another store its guards have to be reset. And guards distinguish exclusive leases (`lock`,
`rwlock.write`): readers and holders of a semaphore hold the lock together, so their fences do not exclude each other.

This package imports no driver: callers pass their own connections.
"""
