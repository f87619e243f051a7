
-- What older tables do not have, and older programs do not mind: marks, and owners. Nothing above is changed for it, so old
-- and new programs can share a database, and may be mixed while they are replaced.

-- A ticket with an owner is in this table also while it is in, so that those who know of no owners see one that excludes
-- them: never in the lock's own row.
SET @holdfast_ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'holdfast_tickets' AND column_name = 'owner'),
    'DO 0',
    'ALTER TABLE holdfast_tickets
        ADD COLUMN owner VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '''''
);
PREPARE holdfast_ddl FROM @holdfast_ddl;
EXECUTE holdfast_ddl;
DEALLOCATE PREPARE holdfast_ddl;

DELIMITER //

DROP PROCEDURE IF EXISTS holdfast_enter_owned//
-- As holdfast_enter, for an exclusive ticket with an owner. Where one of the same owner is in, this one is too, past all who
-- wait, and with the same fence. Names of owners are compared as bytes: no collation thinks any two of them alike.
CREATE PROCEDURE holdfast_enter_owned(
    p_id BINARY(32), p_name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, p_ttl BIGINT, p_queue BOOLEAN,
    p_agent VARCHAR(255) CHARACTER SET utf8mb4, p_info MEDIUMTEXT CHARACTER SET utf8mb4,
    p_owner VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_drawn, v_expires, v_mine, v_place, v_fence, v_obstacle, v_remaining BIGINT;
    DECLARE v_method VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE v_info, v_other MEDIUMTEXT CHARACTER SET utf8mb4;
    DECLARE v_departed, v_has_purged BOOLEAN DEFAULT FALSE;
    DECLARE v_ahead INT;
    DECLARE v_outcome VARCHAR(8) CHARACTER SET ascii DEFAULT 'in';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    INSERT INTO holdfast_locks (id, name, method, drawn) VALUES (p_id, p_name, 'unique', v_now)
    ON DUPLICATE KEY UPDATE drawn = GREATEST(drawn + 1, v_now);
    SET v_now = {now};  -- that may have had to wait
    SELECT l.drawn, l.method, l.nonce, l.expires, l.info,
        COALESCE(l.departed_until > v_now AND FIND_IN_SET(p_nonce, l.departed), FALSE)
    INTO v_drawn, v_method, v_nonce, v_expires, v_info, v_departed
    FROM holdfast_locks l WHERE l.id = p_id FOR UPDATE;

    step: BEGIN
        -- Who is in the lock's row has no owner, so it is another.
        IF v_nonce IS NOT NULL AND v_expires <= v_now THEN
            UPDATE holdfast_locks SET nonce = NULL WHERE id = p_id;
            SET v_nonce = NULL, v_has_purged = TRUE;
        END IF;
        DELETE FROM holdfast_tickets WHERE id = p_id AND expires <= v_now AND nonce <> p_nonce;
        SET v_has_purged = v_has_purged OR ROW_COUNT() > 0;
        SELECT MAX(t.number) INTO v_mine FROM holdfast_tickets t WHERE t.id = p_id AND t.nonce = p_nonce FOR UPDATE;
        IF v_method <> 'unique' THEN
            IF v_nonce IS NOT NULL OR EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE) THEN
                SET v_outcome = 'method', v_other = v_method;
                LEAVE step;
            END IF;
            UPDATE holdfast_locks SET method = 'unique' WHERE id = p_id;
        END IF;
        IF v_departed AND v_mine IS NULL THEN
            SET v_outcome = 'gone';
            LEAVE step;
        END IF;

        -- If this very ticket is in, it keeps its fence: it may have heard of it, and told others of its owner.
        SELECT MAX(t.fence) INTO v_fence FROM holdfast_tickets t
        WHERE t.id = p_id AND t.fence IS NOT NULL AND CAST(t.owner AS BINARY) = CAST(p_owner AS BINARY) FOR UPDATE;
        IF v_fence IS NOT NULL THEN
            -- Ahead of all who wait, for they wait for it too.
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
                    (id, number, name, nonce, fence, exclusive, `limit`, expires, since, agent, info, owner)
                VALUES (
                    p_id, COALESCE(v_place, v_drawn), p_name, p_nonce, v_fence, TRUE, 1, v_now + p_ttl, v_now,
                    p_agent, p_info, p_owner
                );
            ELSE
                UPDATE holdfast_tickets SET number = IF(fence IS NULL, COALESCE(v_place, number), number),
                    fence = v_fence, expires = v_now + p_ttl, since = v_now
                WHERE id = p_id AND number = v_mine;
            END IF;
        ELSEIF p_queue THEN
            IF v_mine IS NULL THEN
                SET v_mine = v_drawn;
                INSERT INTO holdfast_tickets
                    (id, number, name, nonce, fence, exclusive, `limit`, expires, since, agent, info, owner)
                VALUES (
                    p_id, v_drawn, p_name, p_nonce, NULL, TRUE, 1, v_now + {waiter_lease}, v_now, p_agent, p_info, p_owner
                );
            ELSE
                UPDATE holdfast_tickets SET fence = NULL, expires = v_now + {waiter_lease}
                WHERE id = p_id AND number = v_mine;
            END IF;
        END IF;
        IF v_nonce IS NULL AND (v_has_purged OR (v_outcome = 'wait' AND p_queue)) THEN
            CALL holdfast_wake(p_id, v_now);  -- something ahead of others may just have run out
        END IF;
    END;

    SELECT COALESCE(SUM(t.fence IS NULL AND (v_mine IS NULL OR t.number < v_mine)), 0)
    INTO v_ahead FROM holdfast_tickets t WHERE t.id = p_id FOR UPDATE;
    UPDATE holdfast_locks SET tickets = EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = p_id) WHERE id = p_id;
    COMMIT;
    SELECT v_outcome, COALESCE(v_fence, v_drawn), v_ahead, v_remaining, NULL, v_other;
END//

DELIMITER ;

-- A number for a name that never goes down, until the row may be removed. Last, so that who finds it finds the rest of this.
CREATE TABLE IF NOT EXISTS holdfast_marks (
    id BINARY(32) NOT NULL PRIMARY KEY,             -- SHA-256 of the name, which has nothing to do with the lock's
    name VARCHAR(528) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    number BIGINT NOT NULL,
    nonce CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- of the call that raised it
    expires BIGINT NOT NULL,                        -- nobody needs it after this
    expires_utc DATETIME(6) AS (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL expires MICROSECOND) VIRTUAL,
    KEY (expires)
) ENGINE = InnoDB;

-- Last of all, so that who finds it finds everything.
INSERT IGNORE INTO holdfast_schema VALUES ({version});
