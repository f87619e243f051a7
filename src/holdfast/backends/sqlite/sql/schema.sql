-- The lock file. It has one row for every ticket, waiting or granted, and none for a free lock. The rows of a name,
-- ordered by number, are its queue. Numbers and fences come from one counter for all names, with the wall clock (in
-- microseconds) as its floor.
--
-- The row with an empty name describes the file; its `fence` is the counter. In a separate table it would need a
-- separate page, which every grant would have to write too.
CREATE TABLE IF NOT EXISTS tickets (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    nonce TEXT NOT NULL,        -- the file's: tells it from another that gets the same inode when this one is deleted
    session TEXT NOT NULL,      -- whose it is: a FIFO that the kernel closes when that process dies. The file's: the
                                -- boot of the machine that `expires` counts from; tickets of another boot are over
    fence INTEGER,              -- drawn when the ticket is granted; NULL while it waits
    exclusive INTEGER NOT NULL,
    "limit" INTEGER,
    expires REAL NOT NULL,      -- seconds of CLOCK_BOOTTIME
    since REAL NOT NULL,        -- Unix time, for people: when it was queued, then when it was granted
    agent TEXT NOT NULL,
    info TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '',     -- granted tickets that name the same one are in together, before all who wait
    delay REAL NOT NULL DEFAULT 0,      -- not 0: once granted it stays until it expires, also if its process has died
    PRIMARY KEY (name, number)
) STRICT, WITHOUT ROWID;

-- Numbers that never go down, one for each name; of no session and no boot: they outlive both.
CREATE TABLE IF NOT EXISTS marks (
    name TEXT PRIMARY KEY NOT NULL,
    number INTEGER NOT NULL,
    nonce TEXT NOT NULL,        -- who has raised it to this number
    until REAL NOT NULL,        -- it may go when both clocks have passed these: this one is Unix time,
    expires REAL NOT NULL       -- and this is of CLOCK_BOOTTIME; 0 if it was raised in another boot
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS marks_until ON marks (until);
