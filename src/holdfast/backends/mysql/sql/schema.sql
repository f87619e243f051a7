-- The tables of holdfast, and the steps of its protocol that need more than one statement. Each step is a procedure,
-- called in a transaction of its own. Every step locks the row of its lock first, so the steps on one lock are serial.
-- The server executes a step, so a client that is stopped cannot interrupt one.
--
-- Times are microseconds since 1970 by the server's own clock, in UTC for every time zone of a session. No client sends
-- its time. UTC_TIMESTAMP is constant during a statement, so it is read again after a wait for a row.

SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';

CREATE TABLE IF NOT EXISTS holdfast_schema (version INT NOT NULL PRIMARY KEY) ENGINE = InnoDB;

-- A row for every lock that was used within the last hour. The clock is greater than the fence of any older lock.
-- An exclusive holder is stored in this row. Readers, permits and all waiters are in holdfast_tickets.
CREATE TABLE IF NOT EXISTS holdfast_locks (
    id BINARY(32) NOT NULL PRIMARY KEY,             -- SHA-256 of the name: exact in every collation
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    method VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    drawn BIGINT NOT NULL,                          -- the last number drawn, for a queue entry or a fence
    tickets BOOLEAN NOT NULL DEFAULT FALSE,         -- there are rows in holdfast_tickets
    nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,  -- of the holder, or NULL
    fence BIGINT NOT NULL DEFAULT 0,                -- this and the following columns are of the holder
    expires BIGINT NOT NULL DEFAULT 0,
    renewed BIGINT NOT NULL DEFAULT 0,              -- when `expires` was set; later than now: the clock was set back
    since BIGINT NOT NULL DEFAULT 0,
    agent VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL DEFAULT '',  -- the thread or task
    info MEDIUMTEXT CHARACTER SET utf8mb4 NULL,     -- host, pid and program, and the user's meta, as JSON
    departed MEDIUMTEXT CHARACTER SET ascii NULL,   -- tickets released with an unanswered request
    departed_until BIGINT NOT NULL DEFAULT 0,       -- when `departed` expires
    -- For people:
    holder VARCHAR(600) CHARACTER SET utf8mb4 AS (IF(nonce IS NULL OR NOT JSON_VALID(info), NULL, CONCAT(
        JSON_UNQUOTE(JSON_EXTRACT(info, '$.who.host')), '/', JSON_UNQUOTE(JSON_EXTRACT(info, '$.who.pid')), ' ', agent
    ))) VIRTUAL,
    since_utc DATETIME(6) AS (IF(nonce IS NULL, NULL, TIMESTAMP'1970-01-01 00:00:00' + INTERVAL since MICROSECOND))
        VIRTUAL,
    expires_utc DATETIME(6) AS (IF(nonce IS NULL, NULL, TIMESTAMP'1970-01-01 00:00:00' + INTERVAL expires MICROSECOND))
        VIRTUAL
) ENGINE = InnoDB;

-- A row for every ticket that waits or shares the lock. Within a lock, the order by number is the queue.
CREATE TABLE IF NOT EXISTS holdfast_tickets (
    id BINARY(32) NOT NULL,
    number BIGINT NOT NULL,
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    fence BIGINT NULL,                              -- drawn when the ticket is granted; NULL while it waits
    exclusive BOOLEAN NOT NULL,
    `limit` INT NULL,                               -- how many may hold it at once; NULL: any number of readers
    expires BIGINT NOT NULL,
    renewed BIGINT NOT NULL DEFAULT 0,              -- as in holdfast_locks
    since BIGINT NOT NULL,                          -- when it was queued, then when it was granted
    agent VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL,
    info MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
    -- A ticket with an owner is in this table also while it is granted, never in the row of the lock. So programs of
    -- older versions, which ignore owners, see a ticket that excludes them.
    owner VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    client CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',  -- the client that the ticket belongs to
    holder VARCHAR(600) CHARACTER SET utf8mb4 AS (IF(NOT JSON_VALID(info), NULL, CONCAT(
        JSON_UNQUOTE(JSON_EXTRACT(info, '$.who.host')), '/', JSON_UNQUOTE(JSON_EXTRACT(info, '$.who.pid')), ' ', agent
    ))) VIRTUAL,
    since_utc DATETIME(6) AS (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL since MICROSECOND) VIRTUAL,
    expires_utc DATETIME(6) AS (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL expires MICROSECOND) VIRTUAL,
    PRIMARY KEY (id, number)
) ENGINE = InnoDB;

-- The gate rows, which method=row locks. A ticket that has the row lock writes its nonce there and never commits it.
-- Other clients read it with READ UNCOMMITTED to identify the ticket.
CREATE TABLE IF NOT EXISTS holdfast_gates (
    id BINARY(32) NOT NULL PRIMARY KEY,
    nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL
) ENGINE = InnoDB;

-- Connections of method=row that wait for a gate row or have locked it, with their clients. Rows are never committed, so
-- the table is always empty for readers of committed rows. If a client does not respond, all of its connections at a gate
-- row are killed together.
CREATE TABLE IF NOT EXISTS holdfast_sessions (
    id BINARY(32) NOT NULL,                         -- of the gate row
    nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    client CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (id, nonce)
) ENGINE = InnoDB;

-- Registers: a number for each name that only grows, until the row expires.
CREATE TABLE IF NOT EXISTS holdfast_marks (
    id BINARY(32) NOT NULL PRIMARY KEY,             -- SHA-256 of the name; unrelated to the lock of that name
    name VARCHAR(528) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    number BIGINT NOT NULL,
    nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- of the call that advanced it
    expires BIGINT NOT NULL,                        -- the row may be removed then
    expires_utc DATETIME(6) AS (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL expires MICROSECOND) VIRTUAL,
    KEY (expires)
) ENGINE = InnoDB;

-- Records: a text for each name, until the row expires.
CREATE TABLE IF NOT EXISTS holdfast_records (
    id BINARY(32) NOT NULL PRIMARY KEY,             -- SHA-256 of the name; unrelated to the lock of that name
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- of the call that stored it
    payload MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    expires BIGINT NOT NULL,                        -- the record does not exist from then on, and the row may be removed
    expires_utc DATETIME(6) AS (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL expires MICROSECOND) VIRTUAL,
    KEY (expires)
) ENGINE = InnoDB;

-- Columns that tables of version 1 lack. All of them have a default, because a running program of version 1 continues to
-- use these tables: it calls holdfast_enter and holdfast_enter_owned, which are not dropped. A program of version 1 that
-- starts later finds version 2 in holdfast_schema and refuses to work.
SET @holdfast_ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'holdfast_tickets' AND column_name = 'owner'),
    'DO 0',
    'ALTER TABLE holdfast_tickets
        ADD COLUMN owner VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '''''
);
PREPARE holdfast_ddl FROM @holdfast_ddl;
EXECUTE holdfast_ddl;
SET @holdfast_ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'holdfast_tickets' AND column_name = 'client'),
    'DO 0',
    'ALTER TABLE holdfast_tickets ADD COLUMN renewed BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN client CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '''''
);
PREPARE holdfast_ddl FROM @holdfast_ddl;
EXECUTE holdfast_ddl;
SET @holdfast_ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'holdfast_locks' AND column_name = 'renewed'),
    'DO 0',
    'ALTER TABLE holdfast_locks ADD COLUMN renewed BIGINT NOT NULL DEFAULT 0'
);
PREPARE holdfast_ddl FROM @holdfast_ddl;
EXECUTE holdfast_ddl;
DEALLOCATE PREPARE holdfast_ddl;

DELIMITER //

DROP PROCEDURE IF EXISTS holdfast_wake//
-- Shorten the waiter leases of the waiters that can be granted now, in order, up to the first that cannot, and of all
-- other waiters of the same clients. A waiter that is alive polls in time. All waiters of a client that is dead or stopped
-- expire together.
CREATE PROCEDURE holdfast_wake(p_id BINARY(32), p_now BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_number, v_fence, v_last BIGINT;
    DECLARE v_limit INT;
    DECLARE v_exclusive BOOLEAN;
    DECLARE v_ahead INT DEFAULT 0;
    DECLARE v_done BOOLEAN DEFAULT FALSE;
    DECLARE places CURSOR FOR
        SELECT t.number, t.fence, t.exclusive, t.`limit` FROM holdfast_tickets t
        WHERE t.id = p_id ORDER BY t.number FOR UPDATE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = TRUE;

    DELETE FROM holdfast_tickets WHERE id = p_id AND expires <= p_now;
    OPEN places;
    walk: LOOP
        FETCH places INTO v_number, v_fence, v_exclusive, v_limit;
        IF v_done OR (v_fence IS NULL AND v_ahead >= v_limit) THEN
            LEAVE walk;
        END IF;
        IF v_fence IS NULL THEN
            SET v_last = v_number;
        END IF;
        IF v_exclusive THEN
            LEAVE walk;
        END IF;
        SET v_ahead = v_ahead + 1;
    END LOOP;
    CLOSE places;
    IF v_last IS NOT NULL THEN
        UPDATE holdfast_tickets t
        JOIN (
            SELECT DISTINCT w.client FROM holdfast_tickets w
            WHERE w.id = p_id AND w.number <= v_last AND w.fence IS NULL
        ) AS woken ON woken.client = t.client
        SET t.expires = p_now + {woken_lease}
        WHERE t.id = p_id AND t.fence IS NULL AND t.expires > p_now + {woken_lease}
            AND (t.number <= v_last OR t.client <> '');  -- '': of a program of version 1
    END IF;
END//

DROP PROCEDURE IF EXISTS holdfast_try_acquire//
-- Acquire the lock, or queue the ticket, or renew its queue entry.
--
-- `outcome` is "in" (granted), with the fence; "wait", with the number of waiters before it, and the remaining
-- microseconds and the info of the ticket that blocks it; "limit", with the limit and the info of another ticket;
-- "method" if the lock is in use with the method in `other`; "gone" if this ticket was released before. `is_new`: the
-- lock had no row.
CREATE PROCEDURE holdfast_try_acquire(
    p_id BINARY(32), p_name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_method VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin,
    p_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, p_ttl BIGINT, p_exclusive BOOLEAN, p_limit INT,
    p_queue BOOLEAN, p_agent VARCHAR(255) CHARACTER SET utf8mb4, p_info MEDIUMTEXT CHARACTER SET utf8mb4,
    p_client CHAR(32) CHARACTER SET ascii COLLATE ascii_bin
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_drawn, v_expires, v_renewed, v_latest, v_mine, v_first, v_last, v_obstacle, v_remaining BIGINT;
    DECLARE v_method VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_info, v_other MEDIUMTEXT CHARACTER SET utf8mb4;
    DECLARE v_is_new, v_flag, v_departed, v_had_tickets, v_has_tickets, v_has_purged BOOLEAN DEFAULT FALSE;
    DECLARE v_other_limit, v_ahead, v_conflicts, v_skip INT;
    DECLARE v_outcome VARCHAR(8) CHARACTER SET ascii DEFAULT 'in';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    -- Locks the row, and draws the next number, which is greater than all before. The clock is its floor, so that fences
    -- grow also if the row was removed, or replaced by an old copy.
    INSERT INTO holdfast_locks (id, name, method, drawn) VALUES (p_id, p_name, p_method, v_now)
    ON DUPLICATE KEY UPDATE drawn = GREATEST(drawn + 1, v_now);
    SET v_is_new = ROW_COUNT() = 1;  -- the manual says 2 for an existing row
    -- Reads the tickets, not the column `tickets`: an operator may have deleted the row of a lock that is in use, and then
    -- this row is new.
    SELECT COUNT(*) > 0, MAX(t.renewed), MAX(GREATEST(t.number, COALESCE(t.fence, 0)))
    INTO v_had_tickets, v_latest, v_last FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE;
    SET v_now = {now};  -- after all rows are locked: only if the clock was set back is a renewal later than this
    SELECT GREATEST(l.drawn, COALESCE(v_last + 1, 0)), l.method, l.nonce, l.expires, l.renewed, l.info, l.tickets,
        COALESCE(l.departed_until > v_now AND FIND_IN_SET(p_nonce, l.departed), FALSE)
    INTO v_drawn, v_method, v_nonce, v_expires, v_renewed, v_info, v_flag, v_departed
    FROM holdfast_locks l WHERE l.id = p_id FOR UPDATE;
    IF v_last >= v_drawn - 1 THEN
        UPDATE holdfast_locks SET drawn = v_drawn WHERE id = p_id;
    END IF;

    step: BEGIN
        -- After the clock was set back, a lease lasts as long from now as it did from its last renewal. That is longer than
        -- its holder expects, but not by the time by which the clock was set back.
        IF v_renewed > v_now THEN
            SET v_expires = v_expires - v_renewed + v_now;
            UPDATE holdfast_locks SET expires = v_expires, renewed = v_now WHERE id = p_id;
        END IF;
        IF v_latest > v_now THEN
            UPDATE holdfast_tickets SET expires = expires - renewed + v_now, renewed = v_now
            WHERE id = p_id AND renewed > v_now;
        END IF;
        -- Remove all expired tickets and leases of other tickets. This ticket is alive, because it polls. Its entry has not
        -- been removed yet, so it keeps its place in the queue. A lease that is being renewed is locked, so this waits.
        IF v_nonce <> p_nonce AND v_expires <= v_now THEN
            UPDATE holdfast_locks SET nonce = NULL WHERE id = p_id;
            SET v_nonce = NULL, v_has_purged = TRUE;
        END IF;
        IF v_had_tickets THEN
            DELETE FROM holdfast_tickets WHERE id = p_id AND expires <= v_now AND nonce <> p_nonce;
            SET v_has_purged = v_has_purged OR ROW_COUNT() > 0;
            SELECT MAX(t.number) INTO v_mine FROM holdfast_tickets t
            WHERE t.id = p_id AND t.nonce = p_nonce FOR UPDATE;
        END IF;
        IF v_had_tickets AND v_nonce = p_nonce
            AND EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id AND t.fence IS NOT NULL FOR UPDATE)
        THEN
            -- An earlier request acquired the lock when its row was new, although the lock has holders. That is undone
            -- here if the request got no answer, else by CONFIRM_NEW in statements.py.
            UPDATE holdfast_locks SET nonce = NULL WHERE id = p_id;
            SET v_nonce = NULL;
        END IF;
        IF v_had_tickets AND v_method <> 'unique'
            AND EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE)
        THEN
            -- No other method has tickets: the row was deleted, and created again by a client with another method.
            UPDATE holdfast_locks SET method = 'unique' WHERE id = p_id;
            SET v_method = 'unique';
        END IF;
        IF v_method <> p_method THEN
            IF v_nonce IS NOT NULL
                OR (v_had_tickets AND EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE))
            THEN
                SET v_outcome = 'method', v_other = v_method;
                LEAVE step;
            END IF;
            UPDATE holdfast_locks SET method = p_method WHERE id = p_id;
        END IF;
        IF v_departed AND v_mine IS NULL AND NOT v_nonce <=> p_nonce THEN
            SET v_outcome = 'gone';
            LEAVE step;
        END IF;

        IF v_had_tickets AND NOT p_exclusive THEN
            SELECT COUNT(*), MIN(t.`limit`), MIN(t.info) INTO v_conflicts, v_other_limit, v_other
            FROM holdfast_tickets t
            WHERE t.id = p_id AND NOT t.exclusive AND NOT t.`limit` <=> p_limit AND t.nonce <> p_nonce FOR UPDATE;
            IF v_conflicts > 0 THEN
                SET v_outcome = 'limit';
                LEAVE step;
            END IF;
        END IF;

        -- The rule: a ticket is granted if fewer than `limit` tickets are before it and none of those is exclusive. The
        -- holder in the row of the lock is exclusive, and before all others.
        IF v_nonce <> p_nonce THEN
            SET v_outcome = 'wait', v_remaining = v_expires - v_now, v_other = v_info;
        ELSEIF v_nonce IS NULL AND v_had_tickets THEN
            SELECT MIN(t.number) INTO v_first FROM holdfast_tickets t
            WHERE t.id = p_id AND t.exclusive AND (v_mine IS NULL OR t.number < v_mine) FOR UPDATE;
            SET v_last = NULL;
            IF p_limit IS NOT NULL THEN
                SET v_skip = p_limit - 1;
                SELECT MIN(a.number) INTO v_last FROM (
                    SELECT t.number FROM holdfast_tickets t
                    WHERE t.id = p_id AND (v_mine IS NULL OR t.number < v_mine)
                    ORDER BY t.number LIMIT v_skip, 1 FOR UPDATE
                ) AS a;
            END IF;
            SET v_obstacle = COALESCE(LEAST(v_first, v_last), v_first, v_last);
            IF v_obstacle IS NOT NULL THEN
                SET v_outcome = 'wait';
                SELECT t.expires - v_now, t.info INTO v_remaining, v_other FROM holdfast_tickets t
                WHERE t.id = p_id AND t.number = v_obstacle FOR UPDATE;
            END IF;
        END IF;

        IF v_outcome = 'in' THEN
            -- A repeated grant draws a new fence: the first one got no answer, and the row may be an old copy.
            IF p_exclusive THEN
                UPDATE holdfast_locks
                SET nonce = p_nonce, fence = v_drawn, expires = v_now + p_ttl, renewed = v_now, since = v_now,
                    agent = p_agent, info = p_info
                WHERE id = p_id;
                SET v_nonce = p_nonce;
                DELETE FROM holdfast_tickets WHERE id = p_id AND number = v_mine;
            ELSEIF v_mine IS NULL THEN
                INSERT INTO holdfast_tickets
                    (id, number, name, nonce, fence, exclusive, `limit`, expires, renewed, since, agent, info, client)
                VALUES (
                    p_id, v_drawn, p_name, p_nonce, v_drawn, FALSE, p_limit, v_now + p_ttl, v_now, v_now, p_agent, p_info,
                    p_client
                );
            ELSE
                UPDATE holdfast_tickets SET fence = v_drawn, expires = v_now + p_ttl, renewed = v_now, since = v_now
                WHERE id = p_id AND number = v_mine;
            END IF;
        ELSEIF p_queue THEN
            IF v_mine IS NULL THEN
                SET v_mine = v_drawn;
                INSERT INTO holdfast_tickets
                    (id, number, name, nonce, fence, exclusive, `limit`, expires, renewed, since, agent, info, client)
                VALUES (
                    p_id, v_drawn, p_name, p_nonce, NULL, p_exclusive, p_limit, v_now + {waiter_lease}, v_now, v_now,
                    p_agent, p_info, p_client
                );
            ELSE
                UPDATE holdfast_tickets SET fence = NULL, expires = v_now + {waiter_lease}, renewed = v_now
                WHERE id = p_id AND number = v_mine;
            END IF;
        END IF;
        IF v_nonce IS NULL AND (v_has_purged OR (v_outcome = 'wait' AND p_queue)) THEN
            CALL holdfast_wake(p_id, v_now);  -- an expired ticket may have blocked others
        END IF;
    END;

    SELECT COUNT(*) > 0, COALESCE(SUM(t.fence IS NULL AND (v_mine IS NULL OR t.number < v_mine)), 0)
    INTO v_has_tickets, v_ahead FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE;
    IF v_has_tickets <> v_flag THEN
        UPDATE holdfast_locks SET tickets = v_has_tickets WHERE id = p_id;
    END IF;
    COMMIT;
    SELECT v_outcome, v_drawn, v_ahead, v_remaining, v_other_limit, v_other, v_is_new;
END//

DROP PROCEDURE IF EXISTS holdfast_try_acquire_owned//
-- As holdfast_try_acquire, for an exclusive ticket with an owner. If a ticket of the same owner holds the lock, this one
-- is granted too, before all waiters and with the same fence. Owners are compared as bytes, so that no collation matters.
CREATE PROCEDURE holdfast_try_acquire_owned(
    p_id BINARY(32), p_name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, p_ttl BIGINT, p_queue BOOLEAN,
    p_agent VARCHAR(255) CHARACTER SET utf8mb4, p_info MEDIUMTEXT CHARACTER SET utf8mb4,
    p_owner VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_client CHAR(32) CHARACTER SET ascii COLLATE ascii_bin
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_drawn, v_expires, v_renewed, v_latest, v_last, v_mine, v_place, v_fence, v_obstacle, v_remaining BIGINT;
    DECLARE v_method VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_info, v_other MEDIUMTEXT CHARACTER SET utf8mb4;
    DECLARE v_is_new, v_departed, v_has_purged BOOLEAN DEFAULT FALSE;
    DECLARE v_ahead INT;
    DECLARE v_outcome VARCHAR(8) CHARACTER SET ascii DEFAULT 'in';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    INSERT INTO holdfast_locks (id, name, method, drawn) VALUES (p_id, p_name, 'unique', v_now)
    ON DUPLICATE KEY UPDATE drawn = GREATEST(drawn + 1, v_now);
    SET v_is_new = ROW_COUNT() = 1;
    SELECT MAX(t.renewed), MAX(GREATEST(t.number, COALESCE(t.fence, 0))) INTO v_latest, v_last
    FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE;
    SET v_now = {now};
    SELECT GREATEST(l.drawn, COALESCE(v_last + 1, 0)), l.method, l.nonce, l.expires, l.renewed, l.info,
        COALESCE(l.departed_until > v_now AND FIND_IN_SET(p_nonce, l.departed), FALSE)
    INTO v_drawn, v_method, v_nonce, v_expires, v_renewed, v_info, v_departed
    FROM holdfast_locks l WHERE l.id = p_id FOR UPDATE;
    IF v_last >= v_drawn - 1 THEN
        UPDATE holdfast_locks SET drawn = v_drawn WHERE id = p_id;
    END IF;

    step: BEGIN
        IF v_renewed > v_now THEN
            SET v_expires = v_expires - v_renewed + v_now;
            UPDATE holdfast_locks SET expires = v_expires, renewed = v_now WHERE id = p_id;
        END IF;
        IF v_latest > v_now THEN
            UPDATE holdfast_tickets SET expires = expires - renewed + v_now, renewed = v_now
            WHERE id = p_id AND renewed > v_now;
        END IF;
        -- The holder in the row of the lock has no owner, so it is another ticket.
        IF v_nonce IS NOT NULL AND v_expires <= v_now THEN
            UPDATE holdfast_locks SET nonce = NULL WHERE id = p_id;
            SET v_nonce = NULL, v_has_purged = TRUE;
        END IF;
        DELETE FROM holdfast_tickets WHERE id = p_id AND expires <= v_now AND nonce <> p_nonce;
        SET v_has_purged = v_has_purged OR ROW_COUNT() > 0;
        SELECT MAX(t.number) INTO v_mine FROM holdfast_tickets t WHERE t.id = p_id AND t.nonce = p_nonce FOR UPDATE;
        IF v_method <> 'unique' THEN
            IF v_nonce IS NOT NULL THEN
                SET v_outcome = 'method', v_other = v_method;
                LEAVE step;
            END IF;
            UPDATE holdfast_locks SET method = 'unique' WHERE id = p_id;
        END IF;
        IF v_departed AND v_mine IS NULL THEN
            SET v_outcome = 'gone';
            LEAVE step;
        END IF;

        -- If this ticket holds the lock already, it keeps its fence, which other tickets of its owner may have got.
        SELECT MAX(t.fence) INTO v_fence FROM holdfast_tickets t
        WHERE t.id = p_id AND t.fence IS NOT NULL AND CAST(t.owner AS BINARY) = CAST(p_owner AS BINARY) FOR UPDATE;
        IF v_fence IS NOT NULL THEN
            -- Before all waiters, because it blocks them too.
            SELECT MIN(t.number) - 1 INTO v_place FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE;
        ELSEIF v_nonce IS NOT NULL THEN
            SET v_outcome = 'wait', v_remaining = v_expires - v_now, v_other = v_info;
        ELSE
            SELECT MIN(t.number) INTO v_obstacle FROM holdfast_tickets t
            WHERE t.id = p_id AND (v_mine IS NULL OR t.number < v_mine) FOR UPDATE;
            IF v_obstacle IS NOT NULL THEN
                SET v_outcome = 'wait';
                SELECT t.expires - v_now, t.info INTO v_remaining, v_other FROM holdfast_tickets t
                WHERE t.id = p_id AND t.number = v_obstacle FOR UPDATE;
            END IF;
        END IF;

        IF v_outcome = 'in' THEN
            SET v_fence = COALESCE(v_fence, v_drawn);
            IF v_mine IS NULL THEN
                INSERT INTO holdfast_tickets
                    (id, number, name, nonce, fence, exclusive, `limit`, expires, renewed, since, agent, info, owner, client)
                VALUES (
                    p_id, COALESCE(v_place, v_drawn), p_name, p_nonce, v_fence, TRUE, 1, v_now + p_ttl, v_now, v_now,
                    p_agent, p_info, p_owner, p_client
                );
            ELSE
                UPDATE holdfast_tickets SET number = IF(fence IS NULL, COALESCE(v_place, number), number),
                    fence = v_fence, expires = v_now + p_ttl, renewed = v_now, since = v_now
                WHERE id = p_id AND number = v_mine;
            END IF;
        ELSEIF p_queue THEN
            IF v_mine IS NULL THEN
                SET v_mine = v_drawn;
                INSERT INTO holdfast_tickets
                    (id, number, name, nonce, fence, exclusive, `limit`, expires, renewed, since, agent, info, owner, client)
                VALUES (
                    p_id, v_drawn, p_name, p_nonce, NULL, TRUE, 1, v_now + {waiter_lease}, v_now, v_now, p_agent, p_info,
                    p_owner, p_client
                );
            ELSE
                UPDATE holdfast_tickets SET fence = NULL, expires = v_now + {waiter_lease}, renewed = v_now
                WHERE id = p_id AND number = v_mine;
            END IF;
        END IF;
        IF v_nonce IS NULL AND (v_has_purged OR (v_outcome = 'wait' AND p_queue)) THEN
            CALL holdfast_wake(p_id, v_now);  -- an expired ticket may have blocked others
        END IF;
    END;

    SELECT COALESCE(SUM(t.fence IS NULL AND (v_mine IS NULL OR t.number < v_mine)), 0)
    INTO v_ahead FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE;
    UPDATE holdfast_locks SET tickets = EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id) WHERE id = p_id;
    COMMIT;
    SELECT v_outcome, COALESCE(v_fence, v_drawn), v_ahead, v_remaining, NULL, v_other, v_is_new;
END//

DROP PROCEDURE IF EXISTS holdfast_leave//
-- Release or withdraw a ticket, and wake the next waiters. Returns whether it held the lock until now.
--
-- `p_unheard`: a try_acquire of this ticket got no answer, and may still be on its way on another connection. So the
-- release is remembered in `departed` for a while.
CREATE PROCEDURE holdfast_leave(
    p_id BINARY(32), p_name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, p_unheard BOOLEAN
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_expires BIGINT;
    DECLARE v_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_was_in, v_is_gone BOOLEAN DEFAULT FALSE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    IF p_unheard THEN
        INSERT INTO holdfast_locks (id, name, method, drawn, departed, departed_until)
        VALUES (p_id, p_name, 'unique', v_now, p_nonce, v_now + {waiter_lease})
        ON DUPLICATE KEY UPDATE
            drawn = GREATEST(drawn + 1, v_now),  -- protects the row from holdfast_reap
            departed = CONCAT_WS(',', IF(departed_until > v_now, departed, NULL), p_nonce),
            departed_until = v_now + {waiter_lease};
        SET v_now = {now};
    END IF;
    SELECT MAX(l.nonce), MAX(l.expires) INTO v_nonce, v_expires FROM holdfast_locks l WHERE l.id = p_id FOR UPDATE;
    SET v_now = {now};
    IF v_nonce = p_nonce THEN
        UPDATE holdfast_locks SET nonce = NULL WHERE id = p_id;
        SET v_was_in = v_expires > v_now, v_is_gone = TRUE, v_nonce = NULL;
    ELSE
        SELECT COUNT(*) > 0, COALESCE(MAX(t.fence IS NOT NULL AND t.expires > v_now), FALSE) INTO v_is_gone, v_was_in
        FROM holdfast_tickets t WHERE t.id = p_id AND t.nonce = p_nonce FOR UPDATE;
        DELETE FROM holdfast_tickets WHERE id = p_id AND nonce = p_nonce;
    END IF;
    IF v_is_gone THEN
        IF v_nonce IS NULL OR v_expires <= v_now THEN
            CALL holdfast_wake(p_id, v_now);
        END IF;
        UPDATE holdfast_locks SET tickets = EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id) WHERE id = p_id;
    END IF;
    COMMIT;
    SELECT v_was_in;
END//

DROP PROCEDURE IF EXISTS holdfast_break//
-- End exactly the lease with this fence, and wake the next waiters. Returns whether there was one.
CREATE PROCEDURE holdfast_break(p_id BINARY(32), p_fence BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_fence BIGINT;
    DECLARE v_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_is_gone BOOLEAN DEFAULT FALSE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    SELECT MAX(l.nonce), MAX(l.fence) INTO v_nonce, v_fence FROM holdfast_locks l WHERE l.id = p_id FOR UPDATE;
    IF v_nonce IS NOT NULL AND v_fence = p_fence THEN
        UPDATE holdfast_locks SET nonce = NULL WHERE id = p_id;
        SET v_is_gone = TRUE;
    ELSE
        DELETE FROM holdfast_tickets WHERE id = p_id AND fence = p_fence;
        SET v_is_gone = ROW_COUNT() > 0;
    END IF;
    IF v_is_gone THEN
        CALL holdfast_wake(p_id, {now});
        UPDATE holdfast_locks SET tickets = EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id) WHERE id = p_id;
    END IF;
    COMMIT;
    SELECT v_is_gone;
END//

DROP PROCEDURE IF EXISTS holdfast_reap//
-- Remove locks that were unused for an hour, among the rows from `p_from` on. Ids are hashes, so any range is a random
-- sample. Each row is checked again once it is locked, because it may have been used in between.
CREATE PROCEDURE holdfast_reap(p_from BINARY(32)) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_id BINARY(32);
    DECLARE v_idle INT;
    DECLARE v_done BOOLEAN DEFAULT FALSE;
    DECLARE candidates CURSOR FOR
        SELECT c.id FROM (SELECT l.id, l.drawn, l.nonce, l.expires FROM holdfast_locks l
            WHERE l.id >= p_from ORDER BY l.id LIMIT {reap_rows}) AS c
        WHERE c.drawn < v_now - {fence_idle} AND (c.nonce IS NULL OR c.expires <= v_now)
        AND NOT EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = c.id AND t.expires > v_now);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = TRUE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    OPEN candidates;
    sweep: LOOP
        FETCH candidates INTO v_id;
        IF v_done THEN
            LEAVE sweep;
        END IF;
        START TRANSACTION;
        SELECT COUNT(*) INTO v_idle FROM holdfast_locks l
        WHERE l.id = v_id AND l.drawn < v_now - {fence_idle} AND (l.nonce IS NULL OR l.expires <= v_now) FOR UPDATE;
        IF v_idle > 0 THEN
            DELETE FROM holdfast_tickets WHERE id = v_id AND expires <= v_now;
            SELECT COUNT(*) INTO v_idle FROM holdfast_tickets t WHERE t.id = v_id FOR UPDATE;
            IF v_idle = 0 THEN
                DELETE FROM holdfast_locks WHERE id = v_id;
            END IF;
        END IF;
        COMMIT;
    END LOOP;
    CLOSE candidates;
END//

DROP PROCEDURE IF EXISTS holdfast_swap_record//
-- Replace the record of this name, or remove it if `p_nonce` is NULL, if its nonce is `p_expected`; '' stands for no
-- record. Returns the record that exists after that, or no row.
CREATE PROCEDURE holdfast_swap_record(
    p_id BINARY(32), p_name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_expected CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, p_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin,
    p_payload MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, p_keep BIGINT
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_expires BIGINT;
    DECLARE v_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_payload MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_nonce = '';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    IF p_expected = '' THEN
        -- Locks the row. A new one has expired already, so it is no record yet.
        INSERT INTO holdfast_records (id, name, nonce, payload, expires) VALUES (p_id, p_name, '', '', 0)
        ON DUPLICATE KEY UPDATE id = p_id;
    END IF;
    SELECT r.nonce, r.payload, r.expires INTO v_nonce, v_payload, v_expires
    FROM holdfast_records r WHERE r.id = p_id FOR UPDATE;
    SET v_now = {now};  -- after the wait for the row
    IF v_expires <= v_now THEN
        SET v_nonce = '';
    END IF;
    IF v_nonce = p_expected THEN
        IF p_nonce IS NULL THEN
            DELETE FROM holdfast_records WHERE id = p_id;
        ELSE
            UPDATE holdfast_records SET nonce = p_nonce, payload = p_payload, expires = v_now + p_keep WHERE id = p_id;
        END IF;
        SET v_nonce = COALESCE(p_nonce, ''), v_payload = p_payload;
    END IF;
    COMMIT;
    SELECT v_nonce, v_payload FROM DUAL WHERE v_nonce <> '';
END//

DELIMITER ;

-- The last statement, so that a program that finds the version finds everything.
INSERT IGNORE INTO holdfast_schema VALUES ({version});
