-- The tables of holdfast, and the steps of its protocol: each a function that one statement calls, in a transaction of
-- its own. Whoever takes a step on a lock has locked the lock's row first, so the steps on one lock are serial.
--
-- Times are microseconds since 1970 by the server's own clock, read when they are needed (clock_timestamp, never now(),
-- which stands still during a transaction); a client's clock never gets here.

CREATE TABLE IF NOT EXISTS {schema}.holdfast_schema (version integer PRIMARY KEY);
INSERT INTO {schema}.holdfast_schema VALUES ({version}) ON CONFLICT DO NOTHING;

-- A row for every lock that was used within the last hour. Of an older one the clock is beyond the fence anyway.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_locks (
    name text COLLATE "C" PRIMARY KEY,  -- exact; a backslash is written as \\, a zero byte as \0
    fence bigint NOT NULL,              -- the last number drawn, for a place in line or for a fence
    departed text[],                    -- tickets that left while an answer to them was missing: they may still come
    departed_until bigint               -- how long that is remembered
);

-- A row for every ticket, waiting or granted; ordered by number within a name: the queue.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_tickets (
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    nonce text COLLATE "C" NOT NULL,
    fence bigint,                       -- drawn when the ticket is granted; NULL while it waits
    exclusive boolean NOT NULL,
    "limit" integer,                    -- how many may be in at once; NULL: any number of readers
    expires bigint NOT NULL,
    since bigint NOT NULL,              -- when it was queued, then when it was granted
    agent text NOT NULL,                -- the thread or task
    info text NOT NULL,                 -- host, pid and program, and the user's meta, as JSON
    channel text NOT NULL,              -- where its client listens
    PRIMARY KEY (name, number)
);

CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Wake those waiters that the rule lets in now, in order, up to the first that it does not. A hint, once: what the woken
-- one keeps of its waiter lease is short, so that a stopped one cannot hold up the rest.
CREATE OR REPLACE FUNCTION {schema}.holdfast_wake(p_name text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ticket record;
    ahead integer := 0;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.fence IS NULL) THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.expires <= p_now;
    FOR ticket IN
        SELECT t.number, t.nonce, t.fence, t.exclusive, t."limit", t.expires, t.channel
        FROM {schema}.holdfast_tickets t WHERE t.name = p_name ORDER BY t.number
    LOOP
        IF ticket.fence IS NULL THEN
            IF ahead >= ticket."limit" THEN
                RETURN;
            END IF;
            IF ticket.expires > p_now + {woken_lease} THEN  -- else it was woken already
                UPDATE {schema}.holdfast_tickets t SET expires = p_now + {woken_lease}
                WHERE t.name = p_name AND t.number = ticket.number;
                PERFORM pg_notify(ticket.channel, ticket.nonce);
            END IF;
        END IF;
        IF ticket.exclusive THEN
            RETURN;
        END IF;
        ahead := ahead + 1;
    END LOOP;
END
$$;

-- Take the lock, or a place in its queue, or keep the place already taken.
--
-- `outcome` is "in", with the fence; "wait", with the number of those who wait ahead (2 stands for more), and the
-- remaining microseconds and the info of who is in the way; "limit", with the limit and the info of another user of the
-- lock; "gone" if this very ticket has left before.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter(
    p_name text, p_nonce text, p_ttl bigint, p_exclusive boolean, p_limit integer, p_queue boolean,
    p_agent text, p_info text, p_channel text,
    OUT outcome text, OUT fence bigint, OUT ahead integer, OUT remaining bigint, OUT other_limit integer, OUT other text
) LANGUAGE plpgsql AS $$
DECLARE
    drawn bigint;
    is_new boolean;
    is_departed boolean;
    has_purged boolean;
    now_us bigint := {schema}.holdfast_clock();
    mine bigint;
    place integer := 0;
    ticket record;
BEGIN
    -- Locks the row, and draws the next number, greater than all before. The clock is its floor, so that fences go on
    -- growing where the row was removed, or an old copy of it came back.
    INSERT INTO {schema}.holdfast_locks AS l (name, fence) VALUES (p_name, now_us)
    ON CONFLICT (name) DO UPDATE SET fence = greatest(l.fence + 1, excluded.fence)
    RETURNING l.fence, l.xmax = 0, coalesce(p_nonce = ANY (l.departed) AND l.departed_until > now_us, false)
    INTO drawn, is_new, is_departed;
    now_us := {schema}.holdfast_clock();  -- that may have had to wait

    -- The lock is free, and nobody waits: by far the most frequent case, so it comes before all else.
    IF NOT is_departed AND NOT EXISTS (SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = p_name) THEN
        INSERT INTO {schema}.holdfast_tickets VALUES (
            p_name, drawn, p_nonce, drawn, p_exclusive, p_limit, now_us + p_ttl, now_us, p_agent, p_info, p_channel
        );
        IF is_new AND drawn % {reap_every} = 0 THEN
            PERFORM {schema}.holdfast_reap(now_us);
        END IF;
        outcome := 'in';
        fence := drawn;
        RETURN;
    END IF;

    -- Take out what has run out, whoever's it is: all dead waiters lapse at once. But who looks is alive, however late:
    -- nobody has taken its place so far, so it keeps it. A lease that is being renewed just now is waited for here.
    DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.expires <= now_us AND t.nonce <> p_nonce;
    has_purged := FOUND;

    SELECT t.number INTO mine FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.nonce = p_nonce;
    IF mine IS NULL AND is_departed THEN
        outcome := 'gone';
        RETURN;
    END IF;

    IF NOT p_exclusive THEN
        SELECT t."limit", t.info INTO other_limit, other FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND NOT t.exclusive AND t."limit" IS DISTINCT FROM p_limit AND t.nonce <> p_nonce
        LIMIT 1;
        IF FOUND THEN
            outcome := 'limit';
            RETURN;
        END IF;
    END IF;

    -- The rule: in when fewer than the limit are ahead, and none of those is exclusive.
    outcome := 'in';
    FOR ticket IN
        SELECT t.exclusive, t.expires, t.info FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND (mine IS NULL OR t.number < mine) ORDER BY t.number
    LOOP
        place := place + 1;
        IF ticket.exclusive OR place = p_limit THEN
            outcome := 'wait';
            remaining := ticket.expires - now_us;
            other := ticket.info;
            EXIT;
        END IF;
    END LOOP;

    IF outcome = 'in' THEN
        -- Drawn once more if it was granted before: nobody has heard of that fence, and the row may be an old copy's.
        fence := drawn;
        IF mine IS NULL THEN
            INSERT INTO {schema}.holdfast_tickets VALUES (
                p_name, drawn, p_nonce, drawn, p_exclusive, p_limit, now_us + p_ttl, now_us, p_agent, p_info, p_channel
            );
        ELSE
            UPDATE {schema}.holdfast_tickets t SET fence = drawn, expires = now_us + p_ttl, since = now_us
            WHERE t.name = p_name AND t.number = mine;
        END IF;
        IF has_purged AND NOT p_exclusive THEN
            PERFORM {schema}.holdfast_wake(p_name, now_us);  -- what has run out may have kept others out too
        END IF;
        RETURN;
    END IF;

    IF p_queue THEN
        IF mine IS NULL THEN
            mine := drawn;
            INSERT INTO {schema}.holdfast_tickets VALUES (
                p_name, drawn, p_nonce, NULL, p_exclusive, p_limit,
                now_us + {waiter_lease}, now_us, p_agent, p_info, p_channel
            );
        ELSE
            UPDATE {schema}.holdfast_tickets t SET fence = NULL, expires = now_us + {waiter_lease}, channel = p_channel
            WHERE t.name = p_name AND t.number = mine;
        END IF;
    END IF;
    IF p_queue OR has_purged THEN
        PERFORM {schema}.holdfast_wake(p_name, now_us);  -- in case something ahead of others has just run out
    END IF;
    SELECT count(*) INTO ahead FROM (
        SELECT 1 FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.fence IS NULL AND (mine IS NULL OR t.number < mine) LIMIT 2
    ) AS waiting;
END
$$;

-- Release or withdraw a ticket, and wake who is next. Returns whether it was in until now.
--
-- `p_unheard`: an enter of this ticket got no answer, and may still be on its way on another connection. Then it is
-- remembered for a while that the ticket has left.
CREATE OR REPLACE FUNCTION {schema}.holdfast_leave(p_name text, p_nonce text, p_unheard boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := {schema}.holdfast_clock();
    was_in boolean;
BEGIN
    IF p_unheard THEN
        INSERT INTO {schema}.holdfast_locks AS l VALUES (p_name, now_us, ARRAY[p_nonce], now_us + {waiter_lease})
        ON CONFLICT (name) DO UPDATE SET
            fence = greatest(l.fence + 1, excluded.fence),  -- as every step does that may not be forgotten: holdfast_reap
            departed = CASE WHEN l.departed_until > now_us THEN l.departed ELSE '{}' END || p_nonce,
            departed_until = excluded.departed_until;
    ELSE
        PERFORM 1 FROM {schema}.holdfast_locks l WHERE l.name = p_name FOR NO KEY UPDATE;
    END IF;
    now_us := {schema}.holdfast_clock();
    DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.nonce = p_nonce
    RETURNING t.fence IS NOT NULL AND t.expires > now_us INTO was_in;
    IF FOUND THEN
        PERFORM {schema}.holdfast_wake(p_name, now_us);
    END IF;
    RETURN coalesce(was_in, false);
END
$$;

-- Let a lease run for its ttl from now. Returns whether it is still there.
--
-- It locks the ticket's own row only. That will do: a step that wants to take the ticket out waits for it, looks at the
-- row again, and finds it renewed; or has taken it out, and then there is nothing to renew.
CREATE OR REPLACE FUNCTION {schema}.holdfast_renew(p_name text, p_nonce text, p_ttl bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := {schema}.holdfast_clock();
BEGIN
    UPDATE {schema}.holdfast_tickets t SET expires = now_us + p_ttl
    WHERE t.name = p_name AND t.nonce = p_nonce AND t.fence IS NOT NULL AND t.expires > now_us;
    RETURN FOUND;
END
$$;

-- End exactly the lease with this fence, and wake who is next. Returns whether there was one.
CREATE OR REPLACE FUNCTION {schema}.holdfast_break(p_name text, p_fence bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
BEGIN
    PERFORM 1 FROM {schema}.holdfast_locks l WHERE l.name = p_name FOR NO KEY UPDATE;
    now_us := {schema}.holdfast_clock();
    DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.fence = p_fence;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {schema}.holdfast_wake(p_name, now_us);
    RETURN true;
END
$$;

-- Remove locks that nobody has used for an hour. A row that is in use this very moment is skipped; one that was used a
-- moment ago has a new fence, which is looked at again once the row is locked.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reap(p_now bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM {schema}.holdfast_locks WHERE name IN (
        SELECT l.name FROM {schema}.holdfast_locks l
        WHERE l.fence < p_now - {fence_idle}
        AND NOT EXISTS (SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = l.name)
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
$$;
