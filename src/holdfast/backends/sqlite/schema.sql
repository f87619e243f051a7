-- The lock file. One row of state; one row for every ticket, waiting or granted, and none for a free lock.
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    file TEXT NOT NULL,         -- tells this file from another that gets the same inode when this one is deleted
    boot TEXT NOT NULL,         -- the machine's boot that `expires` counts from; tickets of another boot are over
    last_number INTEGER NOT NULL
) STRICT;

-- Ordered by number within a name: the queue. Numbers and fences are drawn from one counter for all names, with the
-- wall clock (in microseconds) as its floor.
CREATE TABLE tickets (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    nonce TEXT NOT NULL,
    session TEXT NOT NULL,      -- whose it is: a FIFO that the kernel closes when that process dies
    fence INTEGER,              -- drawn when the ticket is granted; NULL while it waits
    exclusive INTEGER NOT NULL,
    "limit" INTEGER,
    expires REAL NOT NULL,      -- seconds of CLOCK_BOOTTIME
    since REAL NOT NULL,        -- Unix time, for people: when it was queued, then when it was granted
    agent TEXT NOT NULL,
    info TEXT NOT NULL,
    PRIMARY KEY (name, number)
) STRICT, WITHOUT ROWID;
