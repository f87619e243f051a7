-- The lock file. It has one row for every ticket, waiting or granted, and none for a free lock. The rows of a name,
-- ordered by number, are its queue. Numbers and fences come from one counter for all names, with the wall clock (in
-- microseconds) as its floor.
--
-- The row with an empty name describes the file; its `fence` is the counter. In a separate table it would need a
-- separate page, which every grant would have to write too.
CREATE TABLE IF NOT EXISTS tickets (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    nonce TEXT NOT NULL,        -- of the file: distinguishes it from a later file with the same inode
    session TEXT NOT NULL,      -- the FIFO of its client, which the kernel closes when that process dies. Of the file:
                                -- the boot to which `expires` belongs; tickets of another boot have ended
    fence INTEGER,              -- assigned when the ticket is granted; NULL while it waits
    exclusive INTEGER NOT NULL,
    "limit" INTEGER,
    expires REAL NOT NULL,      -- seconds of CLOCK_BOOTTIME
    since REAL NOT NULL,        -- Unix time, for operators: when it was queued, then when it was granted
    agent TEXT NOT NULL,
    info TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '',     -- granted tickets with the same owner share the lock, before all waiters
    delay REAL NOT NULL DEFAULT 0,      -- not 0: once granted it stays until it expires, even if its process has died
    ttl REAL NOT NULL DEFAULT 0,        -- of its lease, if a release may grant it the lock; 0 if it only wakes it
    PRIMARY KEY (name, number)
) STRICT, WITHOUT ROWID;

-- Registers: a number per name that only grows. They belong to no session and no boot, and outlive both.
CREATE TABLE IF NOT EXISTS marks (
    name TEXT PRIMARY KEY NOT NULL,
    number INTEGER NOT NULL,
    nonce TEXT NOT NULL,        -- of the call that set this number
    until REAL NOT NULL,        -- it is dropped when both clocks have passed these times: this one is Unix time,
    expires REAL NOT NULL       -- and this one CLOCK_BOOTTIME; 0 if it was set in another boot
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS marks_until ON marks (until);

-- Records: a text per name that is replaced by compare-and-set. They belong to no session and no boot, and outlive both.
CREATE TABLE IF NOT EXISTS records (
    name TEXT PRIMARY KEY NOT NULL,
    nonce TEXT NOT NULL,        -- of the call that wrote it
    payload TEXT NOT NULL,
    until REAL NOT NULL,        -- when it ends, in Unix time
    expires REAL                -- the same on CLOCK_BOOTTIME, which decides; NULL if it was written in another boot
) STRICT;
CREATE INDEX IF NOT EXISTS records_until ON records (until);
