-- The tables of holdfast, and the steps of its protocol. Each step is a function that one statement calls, in a
-- transaction of its own. Every step locks the row of its lock first, so the steps on one lock are serial.
--
-- Times are microseconds since 1970 by the server's own clock, read when they are needed (clock_timestamp, never now(),
-- which is constant during a transaction). No client sends its time.
--
-- Every name outside pg_catalog is qualified, and every function has a search_path without the schema. So an operator or a
-- function that another user creates in the schema or as a temporary object is never called. (The manual's section
-- "Writing SECURITY DEFINER Functions Safely" has the reasons.)
--
-- The cost of a lookup must not depend on the number of old versions of a row, which cannot be removed as long as any
-- transaction of the database is open. So the row of a lock is found by the index on (name, generation), newest first,
-- and then changed by its ctid; and tickets are read from the `head` of the lock on.

CREATE TABLE IF NOT EXISTS {schema}.holdfast_schema (version integer PRIMARY KEY);

-- A row for every lock that was used within the last hour, with its exclusive holder. The clock is greater than the fence
-- of any older lock. The fillfactor leaves room on each page for new versions: rows are small and change often.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_locks (
    name text COLLATE "C" NOT NULL,     -- exact and unique; a backslash is written as \\, a zero byte as \0
    method text NOT NULL,               -- "queue" or "advisory": two methods do not exclude each other
    drawn bigint NOT NULL,              -- the last number drawn, for a queue entry or a fence
    queued boolean NOT NULL,            -- there may be tickets of this lock in holdfast_tickets
    nonce text COLLATE "C",             -- the exclusive holder; NULL: none, and the following columns are of the last one
    fence bigint,
    expires bigint,
    since bigint,
    agent text,                         -- the thread or task
    info text,                          -- host, pid and program, and the user's meta, as JSON
    departed text[],                    -- tickets released with an unanswered request, which may still arrive
    departed_until bigint,              -- when `departed` expires
    generation bigint NOT NULL DEFAULT 0,  -- grows with one grant in 32: the newest version of the row has the greatest
    head bigint NOT NULL DEFAULT 0,     -- no ticket of this lock has a smaller number
    renewed bigint,                     -- when `expires` was set
    renewed_fence bigint                -- for the lease with this fence: older versions of holdfast do not set `renewed`
) WITH (fillfactor = 50);

-- A row for every lock that has a row in holdfast_locks. A client that creates a row there has locked this one. The name
-- cannot have a unique index there: each new version of a row would be compared with all old ones.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_names (name text COLLATE "C" PRIMARY KEY);

-- A row for every other ticket: waiters, and tickets that share the lock. Within a name, the order by number is the queue.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_tickets (
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    nonce text COLLATE "C" NOT NULL,
    fence bigint,                       -- drawn when the ticket is granted; NULL while it waits
    exclusive boolean NOT NULL,
    "limit" integer,                    -- how many may hold it at once; NULL: any number of readers
    expires bigint NOT NULL,
    since bigint NOT NULL,              -- when it was queued, then when it was granted
    agent text NOT NULL,
    info text NOT NULL,
    channel text NOT NULL,              -- the NOTIFY channel of its client, which identifies the client
    owner text COLLATE "C",             -- tickets with the same owner hold the lock together; NULL: no owner
    renewed bigint,                     -- when its client last polled or renewed it
    PRIMARY KEY (name, number)
) WITH (fillfactor = 50);

-- Registers: a number for each name that only grows, and the call that advanced it. Unrelated to the lock of that name.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_marks (
    name text COLLATE "C" PRIMARY KEY,  -- as in holdfast_locks
    number bigint NOT NULL,
    nonce text COLLATE "C" NOT NULL,    -- of the call that advanced it, which may be repeated
    expires bigint NOT NULL             -- the row may be removed then
) WITH (fillfactor = 50);

-- Records: a text for each name. Unrelated to the lock and to the register of that name.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_records (
    name text COLLATE "C" PRIMARY KEY,  -- as in holdfast_locks
    nonce text COLLATE "C" NOT NULL,    -- of the call that stored it, which may be repeated
    payload text NOT NULL,
    expires bigint NOT NULL             -- the record does not exist from then on, and the row may be removed
);
CREATE INDEX IF NOT EXISTS holdfast_records_expires ON {schema}.holdfast_records (expires);

-- No search_path here, because a function with one cannot be inlined, and every step inlines this one. So its operator is
-- qualified.
CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint
$$;

-- For people: holders and waiters, and since when. The host and the pid are first in `info`. They are not parsed as
-- JSON, because PostgreSQL refuses JSON with a zero byte or half a surrogate pair in any string.
--
-- A view of this version is not replaced, because that waits until no transaction uses the view.
DO $view$
BEGIN
    IF to_regclass('{schema}.holdfast_status') IS NOT NULL
        AND EXISTS (SELECT 1 FROM {schema}.holdfast_schema s WHERE s.version = {version})
    THEN
        RETURN;
    END IF;
    CREATE OR REPLACE VIEW {schema}.holdfast_status AS
        SELECT
            t.name, CASE WHEN t.fence IS NULL THEN 'waits' ELSE 'holds' END AS state, t.fence,
            substring(t.info FROM '"host": "((?:[^"\\]|\\.)*)"') AS host, substring(t.info FROM '"pid": ([0-9]+)') AS pid, t.agent,
            to_timestamp(t.since / 1e6) AS since, to_timestamp(t.expires / 1e6) AS expires,
            t.method, t.exclusive, t."limit", t.info, t.number, t.since AS since_us, t.expires AS expires_us
        FROM (
            SELECT l.name, l.method, 0 AS number, l.fence, true AS exclusive, 1 AS "limit", l.expires, l.since, l.agent, l.info
            FROM {schema}.holdfast_locks l WHERE l.nonce IS NOT NULL
            UNION ALL
            SELECT q.name, 'queue', q.number, q.fence, q.exclusive, q."limit", q.expires, q.since, q.agent, q.info
            FROM {schema}.holdfast_tickets q
        ) AS t
        WHERE t.expires > {schema}.holdfast_clock();
END
$view$;

-- Whether the client with this channel, which last polled at `p_renewed`, has no session any more.
--
-- Each session of a client shares an advisory lock, which ends with the session. The client is alive if the lock is held.
-- If it is not held, the client has died, or the server was restarted since that poll and the client has not reconnected
-- yet. The latter is impossible if our own session is older than that poll.
CREATE OR REPLACE FUNCTION {schema}.holdfast_is_gone(p_channel text, p_renewed bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key bigint;
BEGIN
    IF p_renewed > nullif(current_setting('holdfast.opened', true), '')::bigint
        AND p_channel ~ '^holdfast_session_[0-9a-f]{32}$'  -- sessions of older versions take no such lock
        AND p_channel <> current_setting('holdfast.channel', true)  -- a session's own lock does not stop it
    THEN
        key := ('x' || substr(p_channel, 18, 16))::bit(64)::bigint;
        IF pg_try_advisory_lock(key) THEN
            PERFORM pg_advisory_unlock(key);
            RETURN true;
        END IF;
    END IF;
    RETURN false;
END
$$;

-- Remove a ticket if its lease has expired. Remove a waiter, and all waiters of the same client, if its client is gone, or
-- has not polled for any of them since this one was woken. Returns 'ticket' or 'client' for what was removed, or NULL if
-- the ticket stays. `p_caller` is the channel of the client that calls this, so it is alive.
--
-- If a lease was renewed later than now, the clock was set back since. The lease then lasts as long from now as it did
-- from its renewal, which is never less than its holder expects.
CREATE OR REPLACE FUNCTION {schema}.holdfast_lapse(
    p_ticket {schema}.holdfast_tickets, p_now bigint, p_head bigint, p_caller text
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_caller boolean := p_ticket.channel IS NOT DISTINCT FROM p_caller;
BEGIN
    IF p_ticket.expires <= p_now THEN
        DELETE FROM {schema}.holdfast_tickets t
        WHERE t.name = p_ticket.name AND t.number = p_ticket.number AND t.expires <= p_now;
        IF NOT FOUND THEN
            RETURN NULL;  -- a concurrent renewal
        END IF;
        IF is_caller OR p_ticket.fence IS NOT NULL OR p_ticket.renewed IS NULL OR EXISTS (
            SELECT 1 FROM {schema}.holdfast_tickets t
            WHERE t.name = p_ticket.name AND t.number >= p_head AND t.channel = p_ticket.channel
            AND t.renewed > CASE
                WHEN p_ticket.expires < p_ticket.renewed + {waiter_lease} THEN p_ticket.expires - {woken_lease}
                ELSE p_ticket.renewed
            END
        ) THEN
            RETURN 'ticket';
        END IF;
    ELSIF is_caller OR p_ticket.fence IS NOT NULL
        OR NOT {schema}.holdfast_is_gone(p_ticket.channel, p_ticket.renewed)
    THEN
        IF p_ticket.renewed > p_now THEN
            UPDATE {schema}.holdfast_tickets t SET expires = p_now + (t.expires - t.renewed), renewed = p_now
            WHERE t.name = p_ticket.name AND t.number = p_ticket.number AND t.renewed > p_now;
        END IF;
        RETURN NULL;
    END IF;
    DELETE FROM {schema}.holdfast_tickets t
    WHERE t.name = p_ticket.name AND t.number >= p_head AND t.channel = p_ticket.channel AND t.fence IS NULL;
    RETURN 'client';
END
$$;

-- Correct the lease of an exclusive holder after the clock was set back, as holdfast_lapse does for a ticket.
CREATE OR REPLACE FUNCTION {schema}.holdfast_set_right(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
    place tid;
BEGIN
    SELECT l.ctid INTO place FROM {schema}.holdfast_locks l WHERE l.name = p_name
    ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE;
    now_us := {schema}.holdfast_clock();
    UPDATE {schema}.holdfast_locks l SET expires = now_us + (l.expires - l.renewed), renewed = now_us
    WHERE l.ctid = place AND l.renewed > now_us AND l.renewed_fence = l.fence;
END
$$;

-- Wake the waiters that can be granted now, in order, up to the first that cannot. Each is notified once. Its waiter lease
-- is shortened, so that a stopped waiter cannot block the others for long. Called when the row of the lock has no
-- exclusive holder.
CREATE OR REPLACE FUNCTION {schema}.holdfast_wake(p_name text, p_now bigint, p_head bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ticket {schema}.holdfast_tickets%ROWTYPE;
    lapsed text;
    dropped text[] := '{}';
    ahead integer := 0;
BEGIN
    FOR ticket IN
        SELECT t.* FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.number >= p_head ORDER BY t.number
    LOOP
        CONTINUE WHEN ticket.fence IS NULL AND ticket.channel = ANY (dropped);
        IF ticket.fence IS NULL OR ticket.expires <= p_now OR ticket.renewed > p_now THEN
            lapsed := {schema}.holdfast_lapse(ticket, p_now, p_head, current_setting('holdfast.channel', true));
            IF lapsed = 'client' THEN
                dropped := dropped || ticket.channel;
            END IF;
            CONTINUE WHEN lapsed IS NOT NULL;
        END IF;
        IF ticket.fence IS NULL THEN
            IF ahead >= ticket."limit" THEN
                RETURN;
            END IF;
            IF ticket.expires - greatest(p_now, ticket.renewed) > {woken_lease} THEN  -- else it was woken already
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

-- The signature that programs of version 1 call.
CREATE OR REPLACE FUNCTION {schema}.holdfast_wake(p_name text, p_now bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM {schema}.holdfast_wake(p_name, p_now, 0::bigint);
END
$$;

-- Create the row of a lock, for the holder with this nonce or without a holder. Returns its number, which is the fence, or
-- NULL if the row exists. One new row in 256 triggers the removal of old rows.
--
-- There may be tickets if an operator has deleted the row. Then no row is created for a holder.
CREATE OR REPLACE FUNCTION {schema}.holdfast_create(
    p_name text, p_method text, p_reaps boolean, p_nonce text, p_ttl bigint, p_agent text, p_info text
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
BEGIN
    IF p_nonce IS NOT NULL AND EXISTS (SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = p_name) THEN
        RETURN NULL;
    END IF;
    LOOP
        INSERT INTO {schema}.holdfast_names (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
        PERFORM 1 FROM {schema}.holdfast_names n WHERE n.name = p_name FOR UPDATE;
        EXIT WHEN FOUND;  -- else it was removed at this moment
    END LOOP;
    now_us := {schema}.holdfast_clock();
    INSERT INTO {schema}.holdfast_locks (
        name, method, drawn, queued, generation, nonce, fence, expires, renewed, renewed_fence, since, agent, info
    )
    SELECT
        p_name, p_method, now_us, p_nonce IS NULL, now_us, p_nonce, h.fence, h.fence + p_ttl, h.fence, h.fence, h.fence,
        p_agent, p_info
    FROM (SELECT CASE WHEN p_nonce IS NOT NULL THEN now_us END AS fence) AS h
    WHERE NOT EXISTS (SELECT 1 FROM {schema}.holdfast_locks l WHERE l.name = p_name);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF p_reaps AND now_us & 255 = 0 THEN
        PERFORM {schema}.holdfast_reap(now_us);
    END IF;
    RETURN now_us;
END
$$;

-- Acquire the lock, or queue the ticket, or renew its queue entry. (The fast path is a plain statement: _FAST_ACQUIRE in
-- protocol/queue.py acquires a lock that is free and has no waiters.)
--
-- `outcome` is "in" (granted), with the fence; "wait", with `ahead` 0 if this ticket is the first waiter, 1 if it is the
-- next one to notice that the first does not respond, else 2, and the remaining microseconds and the info of the ticket
-- that blocks it; "limit", with the limit and the info of another ticket; "method", with the method by which the lock is
-- in use; "gone" if this ticket was released before.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter(
    p_name text, p_nonce text, p_ttl bigint, p_exclusive boolean, p_limit integer, p_queue boolean,
    p_agent text, p_info text, p_channel text,
    OUT outcome text, OUT fence bigint, OUT ahead integer, OUT remaining bigint, OUT other_limit integer, OUT other text
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
    lock record;
    mine bigint;
    behind bigint;  -- the numbers of the tickets before this one are smaller
    first bigint;
    place integer := 0;
    has_purged boolean := false;
    lapsed text;
    dropped text[] := '{}';
    ticket {schema}.holdfast_tickets%ROWTYPE;
    foremost record;
    previous record;
BEGIN
    -- After this loop the row exists and is locked.
    LOOP
        SELECT l.ctid AS place, l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
        ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        PERFORM {schema}.holdfast_create(p_name, 'queue', true, NULL, NULL, NULL, NULL);
    END LOOP;
    now_us := {schema}.holdfast_clock();  -- after a possible wait for the row
    IF lock.nonce <> p_nonce AND lock.renewed > now_us AND lock.renewed_fence = lock.fence THEN
        PERFORM {schema}.holdfast_set_right(p_name);
        SELECT l.ctid AS place, l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
        ORDER BY l.generation DESC LIMIT 1;
    END IF;
    -- The clock is the floor of the drawn numbers, so that they grow also if the row was removed, or replaced by an old
    -- copy.
    lock.drawn := greatest(lock.drawn + 1, now_us);
    IF lock.drawn & 31 = 0 THEN
        lock.generation := lock.drawn;
    END IF;

    IF lock.nonce <> p_nonce AND lock.expires <= now_us THEN
        lock.nonce := NULL;  -- its lease has expired
        has_purged := true;
    END IF;
    IF lock.method <> 'queue' AND lock.nonce IS NOT NULL THEN
        outcome := 'method';
        other := lock.method;
        RETURN;
    END IF;

    IF lock.queued OR NOT p_exclusive THEN
        SELECT t.number INTO mine FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= lock.head AND t.nonce = p_nonce LIMIT 1;
    END IF;
    IF lock.departed_until > now_us + {waiter_lease} THEN  -- the clock was set back
        lock.departed_until := now_us + {waiter_lease};
    END IF;
    IF lock.departed_until > now_us THEN
        IF p_nonce = ANY (lock.departed) AND mine IS NULL AND lock.nonce IS DISTINCT FROM p_nonce THEN
            outcome := 'gone';
            RETURN;
        END IF;
    ELSE
        lock.departed := NULL;
    END IF;

    IF NOT p_exclusive THEN
        SELECT t.* INTO ticket FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= lock.head AND NOT t.exclusive AND t."limit" IS DISTINCT FROM p_limit
        AND t.nonce <> p_nonce AND t.expires > now_us ORDER BY t.number LIMIT 1;
        IF FOUND THEN
            IF ticket.renewed > now_us THEN
                PERFORM {schema}.holdfast_lapse(ticket, now_us, lock.head, p_channel);
            END IF;
            outcome := 'limit';
            other_limit := ticket."limit";
            other := ticket.info;
            RETURN;
        END IF;
    END IF;

    -- The rule: a ticket is granted if fewer than `limit` tickets are before it and none of those is exclusive. The loop
    -- also removes all expired tickets of other clients. This ticket is alive, because it polls. Its entry has not been
    -- removed yet, so it keeps its place in the queue. A lease that is being renewed is locked, so this waits.
    outcome := 'in';
    IF lock.nonce <> p_nonce THEN
        outcome := 'wait';
        remaining := lock.expires - now_us;
        other := lock.info;
    ELSIF lock.nonce IS NULL AND lock.queued THEN
        FOR ticket IN
            SELECT t.* FROM {schema}.holdfast_tickets t
            WHERE t.name = p_name AND t.number >= lock.head AND (mine IS NULL OR t.number < mine) ORDER BY t.number
        LOOP
            CONTINUE WHEN ticket.fence IS NULL AND ticket.channel = ANY (dropped);
            IF ticket.fence IS NULL OR ticket.expires <= now_us OR ticket.renewed > now_us THEN
                lapsed := {schema}.holdfast_lapse(ticket, now_us, lock.head, p_channel);
                IF lapsed = 'client' THEN
                    dropped := dropped || ticket.channel;
                END IF;
                IF lapsed IS NOT NULL THEN
                    has_purged := true;
                    CONTINUE;
                END IF;
            END IF;
            first := coalesce(first, ticket.number);
            place := place + 1;
            IF ticket.exclusive OR place = p_limit THEN
                outcome := 'wait';
                remaining := ticket.expires - greatest(now_us, ticket.renewed);
                other := ticket.info;
                EXIT;
            END IF;
        END LOOP;
        lock.head := coalesce(first, mine, lock.drawn);
    END IF;

    -- A repeated grant draws a new fence: the first one got no answer, and the row may be an old copy.
    IF outcome = 'in' AND p_exclusive THEN
        fence := lock.drawn;
        IF mine IS NOT NULL THEN
            DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.number = mine;
        END IF;
        UPDATE {schema}.holdfast_locks l SET
            method = 'queue', drawn = lock.drawn, generation = lock.generation, head = lock.head,
            departed = lock.departed, departed_until = lock.departed_until,
            queued = lock.queued AND EXISTS (
                SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.number >= lock.head
            ),
            nonce = p_nonce, fence = lock.drawn, expires = now_us + p_ttl, renewed = now_us, renewed_fence = lock.drawn,
            since = now_us, agent = p_agent, info = p_info
        WHERE l.ctid = lock.place;
        RETURN;
    END IF;
    IF outcome = 'in' THEN
        fence := lock.drawn;
        IF mine IS NULL THEN
            INSERT INTO {schema}.holdfast_tickets
                (name, number, nonce, fence, exclusive, "limit", expires, renewed, since, agent, info, channel)
            VALUES (
                p_name, lock.drawn, p_nonce, lock.drawn, false, p_limit,
                now_us + p_ttl, now_us, now_us, p_agent, p_info, p_channel
            );
        ELSE
            UPDATE {schema}.holdfast_tickets t SET
                fence = lock.drawn, expires = now_us + p_ttl, renewed = now_us, since = now_us
            WHERE t.name = p_name AND t.number = mine;
        END IF;
    ELSIF p_queue AND mine IS NULL THEN
        mine := lock.drawn;
        INSERT INTO {schema}.holdfast_tickets
            (name, number, nonce, fence, exclusive, "limit", expires, renewed, since, agent, info, channel)
        VALUES (
            p_name, lock.drawn, p_nonce, NULL, p_exclusive, p_limit,
            now_us + {waiter_lease}, now_us, now_us, p_agent, p_info, p_channel
        );
    ELSIF p_queue THEN
        UPDATE {schema}.holdfast_tickets t SET
            fence = NULL, expires = now_us + {waiter_lease}, renewed = now_us, channel = p_channel
        WHERE t.name = p_name AND t.number = mine;
    END IF;
    IF fence IS NOT NULL OR mine = lock.drawn OR has_purged THEN
        UPDATE {schema}.holdfast_locks l SET
            method = 'queue', drawn = lock.drawn, generation = lock.generation, head = lock.head,
            departed = lock.departed, departed_until = lock.departed_until, nonce = lock.nonce, queued = true
        WHERE l.ctid = lock.place;
    END IF;
    -- An expired ticket may have blocked others too, some of them before this one.
    IF lock.nonce IS NULL AND (has_purged OR outcome = 'wait' AND p_queue) THEN
        PERFORM {schema}.holdfast_wake(p_name, now_us, lock.head);
    END IF;
    IF outcome = 'wait' THEN
        behind := coalesce(mine, 9223372036854775807);  -- a single bound, so that the index is read from there, in a queue of any length
        SELECT t.number, t.channel INTO foremost FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= lock.head AND t.number < behind AND t.fence IS NULL
        ORDER BY t.number LIMIT 1;
        SELECT t.number, t.channel INTO previous FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= lock.head AND t.number < behind AND t.fence IS NULL
        ORDER BY t.number DESC LIMIT 1;
        ahead := CASE
            WHEN foremost.number IS NULL THEN 0
            WHEN foremost.number = previous.number THEN 1
            WHEN foremost.channel = previous.channel AND foremost.channel <> p_channel THEN 1
            ELSE 2
        END;
    END IF;
END
$$;

-- The same for an exclusive ticket with an owner: it is granted at once if another ticket of that owner holds the lock,
-- with the same fence, and before all waiters.
--
-- While such tickets are granted, they are in holdfast_tickets, never in the row of the lock, which has room for one. They
-- are queued before all others there, so that they block all others, and the other steps need not handle owners.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter_owner(
    p_name text, p_nonce text, p_ttl bigint, p_queue boolean, p_agent text, p_info text, p_channel text, p_owner text,
    OUT outcome text, OUT fence bigint, OUT ahead integer, OUT remaining bigint, OUT other_limit integer, OUT other text
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
    lock record;
    row_at tid;
    head_number bigint;
    foremost bigint;
BEGIN
    LOOP
        SELECT l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
        ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        PERFORM {schema}.holdfast_create(p_name, 'queue', true, NULL, NULL, NULL, NULL);
    END LOOP;
    now_us := {schema}.holdfast_clock();
    IF lock.queued THEN  -- also of this ticket itself: it keeps its fence, which other tickets may have got
        SELECT t.fence INTO fence FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= lock.head AND t.owner = p_owner AND t.fence IS NOT NULL
        AND t.expires > now_us LIMIT 1;
    END IF;

    IF fence IS NOT NULL THEN
        IF lock.departed_until > now_us AND p_nonce = ANY (lock.departed) AND NOT EXISTS (
            SELECT 1 FROM {schema}.holdfast_tickets t
            WHERE t.name = p_name AND t.number >= lock.head AND t.nonce = p_nonce
        ) THEN
            outcome := 'gone';
            fence := NULL;
            RETURN;
        END IF;
        outcome := 'in';
        lock.drawn := greatest(lock.drawn + 1, now_us);  -- protects the row from holdfast_reap
    ELSE
        SELECT e.* INTO outcome, fence, ahead, remaining, other_limit, other FROM {schema}.holdfast_enter(
            p_name, p_nonce, p_ttl, true, 1, p_queue, p_agent, p_info, p_channel
        ) AS e;
        IF outcome = 'wait' AND p_queue THEN
            UPDATE {schema}.holdfast_tickets t SET owner = p_owner
            WHERE t.name = p_name AND t.number >= lock.head AND t.nonce = p_nonce;
        END IF;
        IF outcome <> 'in' THEN
            RETURN;
        END IF;
        lock.drawn := fence;
    END IF;

    -- Granted. Move it out of the row of the lock if holdfast_enter has stored it there.
    SELECT l.ctid, l.head INTO row_at, head_number FROM {schema}.holdfast_locks l WHERE l.name = p_name
    ORDER BY l.generation DESC LIMIT 1;
    SELECT least(lock.drawn, min(t.number) - 1) INTO foremost FROM {schema}.holdfast_tickets t
    WHERE t.name = p_name AND t.number >= head_number;
    UPDATE {schema}.holdfast_locks l SET nonce = NULL, queued = true, drawn = lock.drawn, head = foremost
    WHERE l.ctid = row_at;
    -- A granted ticket is updated, not inserted again: a concurrent renewal must find it.
    UPDATE {schema}.holdfast_tickets t SET
        number = CASE WHEN t.fence IS NULL THEN foremost ELSE t.number END, fence = holdfast_enter_owner.fence,
        expires = now_us + p_ttl, renewed = now_us, since = now_us
    WHERE t.name = p_name AND t.number >= head_number AND t.nonce = p_nonce;
    IF NOT FOUND THEN
        INSERT INTO {schema}.holdfast_tickets
            (name, number, nonce, fence, exclusive, "limit", expires, renewed, since, agent, info, channel, owner)
        VALUES (
            p_name, foremost, p_nonce, fence, true, 1, now_us + p_ttl, now_us, now_us, p_agent, p_info, p_channel, p_owner
        );
    END IF;
    -- Waiters of this owner can be granted now too. They keep their waiter leases, because they block no other ticket.
    PERFORM pg_notify(t.channel, t.nonce) FROM (
        SELECT q.channel, q.nonce FROM {schema}.holdfast_tickets q
        WHERE q.name = p_name AND q.number >= head_number AND q.owner = p_owner AND q.fence IS NULL AND q.expires > now_us
        ORDER BY q.number
    ) AS t;
END
$$;

-- Acquire several locks in turn, up to the first that is busy, without queueing. Returns a row for each of them, as
-- holdfast_enter does. A free lock is acquired as _FAST_ACQUIRE in protocol/queue.py does it.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter_all(
    p_names text[], p_nonces text[], p_ttls bigint[], p_agents text[], p_infos text[], p_owners text[], p_channel text
) RETURNS TABLE (outcome text, fence bigint, ahead integer, remaining bigint, other_limit integer, other text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
    row_at tid;
    reaps_at bigint;
BEGIN
    FOR item IN 1 .. cardinality(p_names) LOOP
        SELECT l.ctid INTO row_at FROM {schema}.holdfast_locks l WHERE l.name = p_names[item]
        ORDER BY l.generation DESC LIMIT 1;
        now_us := {schema}.holdfast_clock();
        outcome := NULL;
        IF p_owners[item] <> '' THEN
            IF row_at IS NULL THEN
                fence := {schema}.holdfast_create(p_names[item], 'queue', false, NULL, NULL, NULL, NULL);
                reaps_at := CASE WHEN fence & 255 = 0 THEN fence ELSE reaps_at END;
            END IF;
            SELECT e.* INTO outcome, fence, ahead, remaining, other_limit, other FROM {schema}.holdfast_enter_owner(
                p_names[item], p_nonces[item], p_ttls[item], false,
                p_agents[item], p_infos[item], p_channel, p_owners[item]
            ) AS e;
            RETURN NEXT;
            EXIT WHEN outcome <> 'in';
            CONTINUE;
        END IF;
        IF row_at IS NULL THEN
            fence := {schema}.holdfast_create(
                p_names[item], 'queue', false, p_nonces[item], p_ttls[item], p_agents[item], p_infos[item]
            );
            outcome := CASE WHEN fence IS NOT NULL THEN 'in' END;
            reaps_at := CASE WHEN fence & 255 = 0 THEN fence ELSE reaps_at END;
        ELSE
            UPDATE {schema}.holdfast_locks l SET
                method = 'queue', drawn = greatest(l.drawn + 1, now_us), nonce = p_nonces[item],
                generation = CASE
                    WHEN greatest(l.drawn + 1, now_us) & 31 = 0 THEN greatest(l.drawn + 1, now_us) ELSE l.generation
                END,
                fence = greatest(l.drawn + 1, now_us), expires = now_us + p_ttls[item],
                renewed = now_us, renewed_fence = greatest(l.drawn + 1, now_us), since = now_us,
                agent = p_agents[item], info = p_infos[item]
            WHERE l.ctid = row_at AND l.nonce IS NULL AND NOT l.queued AND l.departed IS NULL
            RETURNING 'in', l.fence INTO outcome, fence;
        END IF;
        IF outcome IS NULL THEN
            SELECT e.* INTO outcome, fence, ahead, remaining, other_limit, other FROM {schema}.holdfast_enter(
                p_names[item], p_nonces[item], p_ttls[item], true, 1, false,
                p_agents[item], p_infos[item], p_channel
            ) AS e;
        END IF;
        RETURN NEXT;
        EXIT WHEN outcome <> 'in';
    END LOOP;
    -- The last step, because it locks rows out of the order of their names, which could deadlock with a later wait.
    IF reaps_at IS NOT NULL THEN
        PERFORM {schema}.holdfast_reap(reaps_at);
    END IF;
END
$$;

-- Release or withdraw a ticket, and wake the next waiters. Returns whether it held the lock until now. (The fast path for
-- an exclusive holder is a plain statement: _FAST_RELEASE in protocol/queue.py.)
--
-- `p_unheard`: a try_acquire of this ticket got no answer, and may still be on its way on another connection. So the
-- release is remembered in `departed` for a while.
CREATE OR REPLACE FUNCTION {schema}.holdfast_leave(p_name text, p_nonce text, p_unheard boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
    was_in boolean;
    lock record;
BEGIN
    LOOP
        SELECT l.ctid AS place, l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
        ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE;
        EXIT WHEN FOUND OR NOT p_unheard;
        PERFORM {schema}.holdfast_create(p_name, 'queue', true, NULL, NULL, NULL, NULL);
    END LOOP;
    now_us := {schema}.holdfast_clock();
    IF p_unheard THEN
        UPDATE {schema}.holdfast_locks l SET
            drawn = greatest(l.drawn + 1, now_us),  -- protects the row from holdfast_reap
            departed = CASE WHEN l.departed_until > now_us THEN l.departed ELSE '{}' END || p_nonce,
            departed_until = now_us + {waiter_lease},
            nonce = nullif(l.nonce, p_nonce)
        WHERE l.ctid = lock.place;
    ELSIF lock.nonce = p_nonce THEN
        UPDATE {schema}.holdfast_locks l SET nonce = NULL WHERE l.ctid = lock.place;
    END IF;
    IF lock.nonce = p_nonce THEN
        was_in := lock.expires > now_us;
    ELSIF lock.queued IS DISTINCT FROM false THEN  -- the row may have been deleted by an operator, and have tickets
        DELETE FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= coalesce(lock.head, 0) AND t.nonce = p_nonce
        RETURNING t.fence IS NOT NULL AND t.expires > now_us INTO was_in;
        IF NOT FOUND OR lock.expires > now_us AND lock.nonce IS NOT NULL THEN
            RETURN false;  -- it was released before, or was a waiter of a lock that is held
        END IF;
    END IF;
    IF lock.queued IS DISTINCT FROM false THEN
        PERFORM {schema}.holdfast_wake(p_name, now_us, coalesce(lock.head, 0));
    END IF;
    RETURN coalesce(was_in, false);
END
$$;

-- Renew a lease for its ttl from now. Returns whether it still exists.
--
-- For a ticket that shares the lock, this locks only the row of the ticket. That is enough: a step that removes the ticket
-- waits for this row lock, reads the row again, and finds it renewed; or it has removed the row before.
CREATE OR REPLACE FUNCTION {schema}.holdfast_renew(p_name text, p_nonce text, p_ttl bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint := {schema}.holdfast_clock();
    lock record;
BEGIN
    SELECT l.ctid AS place, l.nonce, l.head INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
    ORDER BY l.generation DESC LIMIT 1;
    IF lock.nonce = p_nonce THEN
        SELECT l.ctid INTO lock.place FROM {schema}.holdfast_locks l WHERE l.name = p_name
        ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE;
        now_us := {schema}.holdfast_clock();  -- after the wait for the row: a concurrent renewal must not end earlier
        UPDATE {schema}.holdfast_locks l SET expires = now_us + p_ttl, renewed = now_us, renewed_fence = l.fence
        WHERE l.ctid = lock.place AND l.nonce = p_nonce AND l.expires > now_us;
    ELSE
        UPDATE {schema}.holdfast_tickets t SET expires = now_us + p_ttl, renewed = now_us
        WHERE t.name = p_name AND t.number >= coalesce(lock.head, 0) AND t.nonce = p_nonce
        AND t.fence IS NOT NULL AND t.expires > now_us;
    END IF;
    RETURN FOUND;
END
$$;

-- End exactly the lease with this fence, and wake the next waiters. Returns whether there was one.
CREATE OR REPLACE FUNCTION {schema}.holdfast_break(p_name text, p_fence bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lock record;
BEGIN
    SELECT l.ctid AS place, l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
    ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE;
    IF lock.nonce IS NOT NULL AND lock.fence = p_fence THEN
        UPDATE {schema}.holdfast_locks l SET nonce = NULL WHERE l.ctid = lock.place;
    ELSE
        DELETE FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= coalesce(lock.head, 0) AND t.fence = p_fence;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    IF lock.queued IS DISTINCT FROM false THEN
        PERFORM {schema}.holdfast_wake(p_name, {schema}.holdfast_clock(), coalesce(lock.head, 0));
    END IF;
    RETURN true;
END
$$;

-- method=advisory: a waiter waits for an advisory lock in its session. The lease in the row of the lock is the truth: a
-- session that ends releases the advisory lock, but its next holder waits until the lease has expired. `p_gated` says that
-- this session has the advisory lock already; `gated`, that it has it now.
--
-- `outcome` and the other columns are as in holdfast_enter.
CREATE OR REPLACE FUNCTION {schema}.holdfast_pass(
    p_name text, p_nonce text, p_ttl bigint, p_key bigint, p_gated boolean, p_stay boolean, p_agent text, p_info text,
    OUT outcome text, OUT fence bigint, OUT remaining bigint, OUT other text, OUT gated boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
    lock record;
BEGIN
    gated := p_gated OR pg_try_advisory_lock(p_key);
    LOOP
        SELECT l.ctid AS place, l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
        ORDER BY l.generation DESC LIMIT 1;
        EXIT WHEN NOT FOUND AND NOT gated;
        -- A lease of this ticket counts even if another session has the advisory lock now: the grant got no answer, and the
        -- advisory lock was lost with the connection. Else the two tickets would wait for each other.
        IF FOUND AND (gated OR lock.nonce = p_nonce) THEN
            SELECT l.ctid AS place, l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
            ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE;
        END IF;
        EXIT WHEN FOUND;
        PERFORM {schema}.holdfast_create(p_name, 'advisory', true, NULL, NULL, NULL, NULL);
    END LOOP;
    now_us := {schema}.holdfast_clock();
    IF gated AND lock.nonce <> p_nonce AND lock.renewed > now_us AND lock.renewed_fence = lock.fence THEN
        PERFORM {schema}.holdfast_set_right(p_name);
        SELECT l.ctid AS place, l.* INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name
        ORDER BY l.generation DESC LIMIT 1;
    END IF;

    IF lock.method <> 'advisory' AND lock.nonce IS NOT NULL AND lock.expires > now_us THEN
        outcome := 'method';
        other := lock.method;
    ELSIF lock.queued AND EXISTS (
        SELECT 1 FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.number >= lock.head AND t.expires > now_us
    ) THEN
        outcome := 'method';
        other := 'queue';
        UPDATE {schema}.holdfast_tickets t SET expires = now_us + (t.expires - t.renewed), renewed = now_us
        WHERE t.name = p_name AND t.number >= lock.head AND t.renewed > now_us;  -- as in holdfast_lapse
    ELSIF p_nonce = ANY (lock.departed) AND lock.departed_until > now_us AND lock.nonce IS DISTINCT FROM p_nonce THEN
        outcome := 'gone';
    ELSIF NOT gated AND lock.nonce IS DISTINCT FROM p_nonce OR lock.nonce <> p_nonce AND lock.expires > now_us THEN
        outcome := 'wait';
        remaining := lock.expires - now_us;
        other := lock.info;
    ELSE
        outcome := 'in';
        fence := greatest(lock.drawn + 1, now_us);
        UPDATE {schema}.holdfast_locks l SET
            method = 'advisory', drawn = holdfast_pass.fence, queued = false,
            generation = CASE WHEN holdfast_pass.fence & 31 = 0 THEN holdfast_pass.fence ELSE l.generation END,
            departed = CASE WHEN lock.departed_until > now_us THEN lock.departed END,
            nonce = p_nonce, fence = holdfast_pass.fence, expires = now_us + p_ttl,
            renewed = now_us, renewed_fence = holdfast_pass.fence, since = now_us,
            agent = p_agent, info = p_info
        WHERE l.ctid = lock.place;
        RETURN;
    END IF;
    IF gated AND NOT (outcome = 'wait' AND p_stay) THEN
        PERFORM pg_advisory_unlock(p_key);
        gated := false;
    END IF;
END
$$;

-- Remove locks that were unused for an hour, with their expired tickets. A row that is locked now is skipped. A row that
-- was used in between has drawn a number, which is checked again once the row is locked. Returns how many were removed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reap(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    WITH old AS (
        SELECT l.name FROM {schema}.holdfast_locks l
        WHERE l.drawn < p_now - {fence_idle} AND (l.nonce IS NULL OR l.expires < p_now - {fence_idle})
        AND NOT EXISTS (
            SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = l.name AND t.expires >= p_now - {fence_idle}
        )
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), dead AS (
        DELETE FROM {schema}.holdfast_tickets t USING old WHERE t.name = old.name AND t.expires < p_now - {fence_idle}
    ), orphans AS (  -- of rows that an operator has deleted
        DELETE FROM {schema}.holdfast_tickets t WHERE t.expires < p_now - {fence_idle}
        AND NOT EXISTS (SELECT 1 FROM {schema}.holdfast_locks l WHERE l.name = t.name)
    ), names AS (
        DELETE FROM {schema}.holdfast_names n USING old WHERE n.name = old.name
    ), reaped AS (
        DELETE FROM {schema}.holdfast_locks l USING old WHERE l.name = old.name RETURNING 1
    )
    SELECT count(*) FROM reaped
$$;

-- Remove expired registers. Returns how many were removed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reap_marks(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    WITH old AS (
        SELECT m.name FROM {schema}.holdfast_marks m WHERE m.expires <= p_now LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), reaped AS (
        DELETE FROM {schema}.holdfast_marks m USING old WHERE m.name = old.name RETURNING 1
    )
    SELECT count(*) FROM reaped
$$;

-- Replace the record of this name, or remove it if `p_nonce` is NULL, if its nonce is `p_expected`; '' stands for no record.
-- Returns the record that exists after that, or no row. One new record in 256 triggers the removal of expired ones.
--
-- The row of the record is locked before it is compared. While a name has no row, two calls can both decide to insert it;
-- one of them then inserts nothing, and reads the row of the other.
CREATE OR REPLACE FUNCTION {schema}.holdfast_swap_record(
    p_name text, p_expected text, p_nonce text, p_payload text, p_keep bigint
) RETURNS TABLE (nonce text, payload text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_us bigint;
    stored record;
    has_row boolean;
    stored_nonce text;
BEGIN
    LOOP
        SELECT r.nonce, r.payload, r.expires INTO stored FROM {schema}.holdfast_records r WHERE r.name = p_name FOR UPDATE;
        has_row := FOUND;
        now_us := {schema}.holdfast_clock();  -- after the wait for the row
        stored_nonce := CASE WHEN stored.expires > now_us THEN stored.nonce ELSE '' END;
        IF stored_nonce <> p_expected THEN
            IF stored_nonce <> '' THEN
                RETURN QUERY SELECT stored_nonce, stored.payload;
            END IF;
            RETURN;
        END IF;
        IF p_nonce IS NULL THEN
            DELETE FROM {schema}.holdfast_records r WHERE r.name = p_name;
            RETURN;
        END IF;
        IF has_row THEN
            UPDATE {schema}.holdfast_records r SET nonce = p_nonce, payload = p_payload, expires = now_us + p_keep
            WHERE r.name = p_name;
        ELSE
            INSERT INTO {schema}.holdfast_records AS r (name, nonce, payload, expires)
            VALUES (p_name, p_nonce, p_payload, now_us + p_keep) ON CONFLICT DO NOTHING;
        END IF;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN QUERY SELECT p_nonce, p_payload;
    IF NOT has_row AND now_us & 255 = 0 THEN
        PERFORM {schema}.holdfast_reap_records(now_us);
    END IF;
END
$$;

-- Remove expired records. Returns how many were removed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reap_records(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    WITH old AS (
        SELECT r.name FROM {schema}.holdfast_records r WHERE r.expires <= p_now
        ORDER BY r.expires LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), reaped AS (
        DELETE FROM {schema}.holdfast_records r USING old WHERE r.name = old.name RETURNING 1
    )
    SELECT count(*) FROM reaped
$$;

-- Upgrades of tables that an older holdfast has created, which continues to work with them. At the end, because ALTER TABLE
-- waits until no transaction uses the table, and we must not hold a lock that such a transaction waits for: a query of the
-- view locks the view before its tables. Every step locks holdfast_locks before holdfast_tickets, and so does this. Tables
-- that need no upgrade are not locked.
DO $upgrade$
BEGIN
    IF EXISTS (
        SELECT 1 FROM pg_index i WHERE i.indrelid = '{schema}.holdfast_locks'::regclass AND i.indisreplident
    ) AND to_regclass('{schema}.holdfast_tickets_nonce') IS NOT NULL AND 6 = (
        SELECT count(*) FROM pg_attribute a WHERE NOT a.attisdropped AND (
            a.attrelid = '{schema}.holdfast_tickets'::regclass AND a.attname IN ('owner', 'renewed')
            OR a.attrelid = '{schema}.holdfast_locks'::regclass
            AND a.attname IN ('generation', 'head', 'renewed', 'renewed_fence')
        )
    ) THEN
        RETURN;
    END IF;
    LOCK TABLE {schema}.holdfast_locks, {schema}.holdfast_tickets IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE {schema}.holdfast_tickets ADD COLUMN IF NOT EXISTS owner text COLLATE "C";
    ALTER TABLE {schema}.holdfast_tickets ADD COLUMN IF NOT EXISTS renewed bigint;
    ALTER TABLE {schema}.holdfast_locks ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0;
    ALTER TABLE {schema}.holdfast_locks ADD COLUMN IF NOT EXISTS head bigint NOT NULL DEFAULT 0;
    ALTER TABLE {schema}.holdfast_locks ADD COLUMN IF NOT EXISTS renewed bigint;
    ALTER TABLE {schema}.holdfast_locks ADD COLUMN IF NOT EXISTS renewed_fence bigint;
    ALTER TABLE {schema}.holdfast_locks DROP CONSTRAINT IF EXISTS holdfast_locks_pkey;
    CREATE UNIQUE INDEX IF NOT EXISTS holdfast_locks_newest ON {schema}.holdfast_locks (name, generation);
    -- A poll finds its own ticket by the nonce, at the same cost in a queue of any length.
    CREATE INDEX IF NOT EXISTS holdfast_tickets_nonce ON {schema}.holdfast_tickets (name, nonce);
    ALTER TABLE {schema}.holdfast_locks REPLICA IDENTITY USING INDEX holdfast_locks_newest;  -- it may be published
END
$upgrade$;
INSERT INTO {schema}.holdfast_names SELECT l.name FROM {schema}.holdfast_locks l ON CONFLICT DO NOTHING;
INSERT INTO {schema}.holdfast_schema VALUES ({version}) ON CONFLICT DO NOTHING;
