-- The tables of holdfast, and the steps of its protocol: each a function that one statement calls, in a transaction of
-- its own. Whoever takes a step on a lock has locked the lock's row first, so the steps on one lock are serial.
--
-- Times are microseconds since 1970 by the server's own clock, read when they are needed (clock_timestamp, never now(),
-- which stands still during a transaction); a client's clock never gets here.

CREATE TABLE IF NOT EXISTS {schema}.holdfast_schema (version integer PRIMARY KEY);
INSERT INTO {schema}.holdfast_schema VALUES ({version}) ON CONFLICT DO NOTHING;

-- A row for every lock that was used within the last hour, with its exclusive holder. Of an older one the clock is
-- beyond the fence anyway. There is room on each page for the next version of a row: a lock changes, and stays small.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_locks (
    name text COLLATE "C" PRIMARY KEY,  -- exact; a backslash is written as \\, a zero byte as \0
    method text NOT NULL,               -- "queue" or "advisory": two methods would not keep each other out
    drawn bigint NOT NULL,              -- the last number drawn, for a place in line or for a fence
    queued boolean NOT NULL,            -- there may be tickets of this lock in holdfast_tickets
    nonce text COLLATE "C",             -- the exclusive holder; NULL: none, and then the rest is of the last one
    fence bigint,
    expires bigint,
    since bigint,
    agent text,                         -- the thread or task
    info text,                          -- host, pid and program, and the user's meta, as JSON
    departed text[],                    -- tickets that left while an answer to them was missing: they may still come
    departed_until bigint               -- how long that is remembered
) WITH (fillfactor = 50);

-- A row for every other ticket: who waits, and who shares the lock; ordered by number within a name: the queue.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_tickets (
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    nonce text COLLATE "C" NOT NULL,
    fence bigint,                       -- drawn when the ticket is granted; NULL while it waits
    exclusive boolean NOT NULL,
    "limit" integer,                    -- how many may be in at once; NULL: any number of readers
    expires bigint NOT NULL,
    since bigint NOT NULL,              -- when it was queued, then when it was granted
    agent text NOT NULL,
    info text NOT NULL,
    channel text NOT NULL,              -- where its client listens
    owner text COLLATE "C",             -- who is in together with others that name the same one; NULL: nobody's
    PRIMARY KEY (name, number)
) WITH (fillfactor = 50);

-- A number for each name that only ever grows, and who raised it. It has nothing to do with the lock of that name.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_marks (
    name text COLLATE "C" PRIMARY KEY,  -- as in holdfast_locks
    number bigint NOT NULL,
    nonce text COLLATE "C" NOT NULL,    -- of the call that raised it: it may come once more
    expires bigint NOT NULL             -- the mark counts for as long as it is there, and that is until then at least
) WITH (fillfactor = 50);

CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- For people: who holds what since when, and who waits for it.
CREATE OR REPLACE VIEW {schema}.holdfast_status AS
    SELECT
        t.name, CASE WHEN t.fence IS NULL THEN 'waits' ELSE 'holds' END AS state, t.fence,
        t.info::json #>> '{who,host}' AS host, t.info::json #>> '{who,pid}' AS pid, t.agent,
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

-- Wake those waiters that the rule lets in now, in order, up to the first that it does not. A hint, once: what the woken
-- one keeps of its waiter lease is short, so that a stopped one cannot hold up the rest. Called when no exclusive holder
-- is in the lock's row.
CREATE OR REPLACE FUNCTION {schema}.holdfast_wake(p_name text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ticket record;
    ahead integer := 0;
BEGIN
    FOR ticket IN
        SELECT t.number, t.nonce, t.fence, t.exclusive, t."limit", t.expires, t.channel
        FROM {schema}.holdfast_tickets t WHERE t.name = p_name ORDER BY t.number
    LOOP
        IF ticket.expires <= p_now THEN
            DELETE FROM {schema}.holdfast_tickets t
            WHERE t.name = p_name AND t.number = ticket.number AND t.expires <= p_now;
            CONTINUE WHEN FOUND;  -- else it was renewed just now
        END IF;
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

-- Take the lock, or a place in its queue, or keep the place already taken. (What is tried first is a plain statement, for
-- speed: TAKE in protocol.py takes a lock that is free and for which nobody waits.)
--
-- `outcome` is "in", with the fence; "wait", with the number of those who wait ahead (2 stands for more), and the
-- remaining microseconds and the info of who is in the way; "limit", with the limit and the info of another user of the
-- lock; "method", with the method by which others hold the lock; "gone" if this very ticket has left before.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter(
    p_name text, p_nonce text, p_ttl bigint, p_exclusive boolean, p_limit integer, p_queue boolean,
    p_agent text, p_info text, p_channel text,
    OUT outcome text, OUT fence bigint, OUT ahead integer, OUT remaining bigint, OUT other_limit integer, OUT other text
) LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := {schema}.holdfast_clock();
    lock {schema}.holdfast_locks%ROWTYPE;
    mine bigint;
    place integer := 0;
    has_purged boolean := false;
    ticket record;
BEGIN
    -- In any case the row is there afterwards, and locked.
    INSERT INTO {schema}.holdfast_locks AS l (name, method, drawn, queued)
    VALUES (p_name, 'queue', now_us, NOT p_exclusive)
    ON CONFLICT (name) DO UPDATE SET queued = true WHERE NOT l.queued AND NOT p_exclusive;
    SELECT * INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name;
    now_us := {schema}.holdfast_clock();  -- that may have had to wait
    -- The clock is the floor of the numbers drawn, so that they go on growing where the row was removed, or an old copy
    -- of it came back.
    lock.drawn := greatest(lock.drawn + 1, now_us);

    IF lock.nonce <> p_nonce AND lock.expires <= now_us THEN
        lock.nonce := NULL;  -- its lease has run out
        has_purged := true;
    END IF;
    IF lock.method <> 'queue' AND lock.nonce IS NOT NULL THEN
        outcome := 'method';
        other := lock.method;
        RETURN;
    END IF;

    IF lock.queued THEN
        SELECT t.number INTO mine FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.nonce = p_nonce LIMIT 1;
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
        SELECT t."limit", t.info INTO other_limit, other FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND NOT t.exclusive AND t."limit" IS DISTINCT FROM p_limit AND t.nonce <> p_nonce
        AND t.expires > now_us LIMIT 1;
        IF FOUND THEN
            outcome := 'limit';
            RETURN;
        END IF;
    END IF;

    -- The rule: in when fewer than the limit are ahead, and none of those is exclusive. On the way, what has run out is
    -- taken out, whoever's it is: all dead waiters lapse at once. But who looks is alive, however late: nobody has
    -- taken its place so far, so it keeps it. A lease that is being renewed just now is waited for here.
    outcome := 'in';
    IF lock.nonce <> p_nonce THEN
        outcome := 'wait';
        remaining := lock.expires - now_us;
        other := lock.info;
    ELSIF lock.nonce IS NULL AND lock.queued THEN
        FOR ticket IN
            SELECT t.number, t.exclusive, t.expires, t.info FROM {schema}.holdfast_tickets t
            WHERE t.name = p_name AND (mine IS NULL OR t.number < mine) ORDER BY t.number
        LOOP
            IF ticket.expires <= now_us THEN
                DELETE FROM {schema}.holdfast_tickets t
                WHERE t.name = p_name AND t.number = ticket.number AND t.expires <= now_us;
                IF FOUND THEN
                    has_purged := true;
                    CONTINUE;
                END IF;
            END IF;
            place := place + 1;
            IF ticket.exclusive OR place = p_limit THEN
                outcome := 'wait';
                remaining := ticket.expires - now_us;
                other := ticket.info;
                EXIT;
            END IF;
        END LOOP;
    END IF;

    -- If it was granted before, the fence is drawn once more: nobody has heard of the other, and the row may be an old
    -- copy's.
    IF outcome = 'in' AND p_exclusive THEN
        fence := lock.drawn;
        IF mine IS NOT NULL THEN
            DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.number = mine;
        END IF;
        UPDATE {schema}.holdfast_locks l SET
            method = 'queue', drawn = lock.drawn, departed = lock.departed,
            queued = lock.queued AND EXISTS (SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = p_name),
            nonce = p_nonce, fence = lock.drawn, expires = now_us + p_ttl, since = now_us, agent = p_agent, info = p_info
        WHERE l.name = p_name;
        RETURN;
    END IF;
    IF outcome = 'in' THEN
        fence := lock.drawn;
        IF mine IS NULL THEN
            INSERT INTO {schema}.holdfast_tickets VALUES (
                p_name, lock.drawn, p_nonce, lock.drawn, false, p_limit,
                now_us + p_ttl, now_us, p_agent, p_info, p_channel
            );
        ELSE
            UPDATE {schema}.holdfast_tickets t SET fence = lock.drawn, expires = now_us + p_ttl, since = now_us
            WHERE t.name = p_name AND t.number = mine;
        END IF;
    ELSIF p_queue AND mine IS NULL THEN
        mine := lock.drawn;
        INSERT INTO {schema}.holdfast_tickets VALUES (
            p_name, lock.drawn, p_nonce, NULL, p_exclusive, p_limit,
            now_us + {waiter_lease}, now_us, p_agent, p_info, p_channel
        );
    ELSIF p_queue THEN
        UPDATE {schema}.holdfast_tickets t SET fence = NULL, expires = now_us + {waiter_lease}, channel = p_channel
        WHERE t.name = p_name AND t.number = mine;
    END IF;
    IF fence IS NOT NULL OR mine = lock.drawn OR has_purged THEN
        UPDATE {schema}.holdfast_locks l SET
            method = 'queue', drawn = lock.drawn, departed = lock.departed, nonce = lock.nonce, queued = true
        WHERE l.name = p_name;
    END IF;
    -- What has just run out may have kept others out too, some of them ahead of this one.
    IF lock.nonce IS NULL AND (has_purged OR outcome = 'wait' AND p_queue) THEN
        PERFORM {schema}.holdfast_wake(p_name, now_us);
    END IF;
    IF outcome = 'wait' THEN
        SELECT count(*) INTO ahead FROM (
            SELECT 1 FROM {schema}.holdfast_tickets t
            WHERE t.name = p_name AND t.fence IS NULL AND (mine IS NULL OR t.number < mine) LIMIT 2
        ) AS waiting;
    END IF;
END
$$;

-- The same for an exclusive ticket that names an owner: it is in at once if another one of that owner is, with the same
-- fence, and past all who wait.
--
-- Such tickets are in holdfast_tickets while they are in, never in the lock's row, which has room for one. They stand
-- before everybody else there, so that all other steps find them in the way, one after the other, and need not know
-- what an owner is.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter_owner(
    p_name text, p_nonce text, p_ttl bigint, p_queue boolean, p_agent text, p_info text, p_channel text, p_owner text,
    OUT outcome text, OUT fence bigint, OUT ahead integer, OUT remaining bigint, OUT other_limit integer, OUT other text
) LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := {schema}.holdfast_clock();
    lock {schema}.holdfast_locks%ROWTYPE;
    first bigint;
BEGIN
    INSERT INTO {schema}.holdfast_locks AS l (name, method, drawn, queued) VALUES (p_name, 'queue', now_us, false)
    ON CONFLICT (name) DO UPDATE SET queued = l.queued WHERE false;  -- the row is there now, and locked
    SELECT * INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name;
    now_us := {schema}.holdfast_clock();
    IF lock.queued THEN  -- it may be in itself: then it keeps its fence, which others may have got from it by now
        SELECT t.fence INTO fence FROM {schema}.holdfast_tickets t
        WHERE t.name = p_name AND t.owner = p_owner AND t.fence IS NOT NULL AND t.expires > now_us LIMIT 1;
    END IF;

    IF fence IS NOT NULL THEN
        IF lock.departed_until > now_us AND p_nonce = ANY (lock.departed) AND NOT EXISTS (
            SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.nonce = p_nonce
        ) THEN
            outcome := 'gone';
            fence := NULL;
            RETURN;
        END IF;
        outcome := 'in';
        lock.drawn := greatest(lock.drawn + 1, now_us);  -- as every step does that may not be forgotten: holdfast_reap
    ELSE
        SELECT e.* INTO outcome, fence, ahead, remaining, other_limit, other FROM {schema}.holdfast_enter(
            p_name, p_nonce, p_ttl, true, 1, p_queue, p_agent, p_info, p_channel
        ) AS e;
        IF outcome = 'wait' AND p_queue THEN
            UPDATE {schema}.holdfast_tickets t SET owner = p_owner WHERE t.name = p_name AND t.nonce = p_nonce;
        END IF;
        IF outcome <> 'in' THEN
            RETURN;
        END IF;
        lock.drawn := fence;
    END IF;

    -- In, and out of the lock's row if holdfast_enter has put it there.
    UPDATE {schema}.holdfast_locks l SET nonce = NULL, queued = true, drawn = lock.drawn WHERE l.name = p_name;
    SELECT least(lock.drawn, min(t.number) - 1) INTO first FROM {schema}.holdfast_tickets t WHERE t.name = p_name;
    -- One that is in is changed, not put in anew: it may be renewed just now, and that would not find it again.
    UPDATE {schema}.holdfast_tickets t SET
        number = CASE WHEN t.fence IS NULL THEN first ELSE t.number END, fence = holdfast_enter_owner.fence,
        expires = now_us + p_ttl, since = now_us
    WHERE t.name = p_name AND t.nonce = p_nonce;
    IF NOT FOUND THEN
        INSERT INTO {schema}.holdfast_tickets VALUES (
            p_name, first, p_nonce, fence, true, 1, now_us + p_ttl, now_us, p_agent, p_info, p_channel, p_owner
        );
    END IF;
    -- Others of this owner may wait, who are in with this one. They keep their waiter lease: who does not come now is in
    -- nobody's way.
    PERFORM pg_notify(t.channel, t.nonce) FROM (
        SELECT q.channel, q.nonce FROM {schema}.holdfast_tickets q
        WHERE q.name = p_name AND q.owner = p_owner AND q.fence IS NULL AND q.expires > now_us ORDER BY q.number
    ) AS t;
END
$$;

-- Take several locks, each in turn, up to the first that has to wait: nobody gets into a queue. Returns for each of them
-- what holdfast_enter does. A lock that is free is taken as TAKE in protocol.py does it.
CREATE OR REPLACE FUNCTION {schema}.holdfast_enter_all(
    p_names text[], p_nonces text[], p_ttls bigint[], p_agents text[], p_infos text[], p_owners text[], p_channel text
) RETURNS TABLE (outcome text, fence bigint, ahead integer, remaining bigint, other_limit integer, other text)
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    is_new boolean;
    reaps_at bigint;
BEGIN
    FOR place IN 1 .. cardinality(p_names) LOOP
        IF p_owners[place] <> '' THEN
            SELECT e.* INTO outcome, fence, ahead, remaining, other_limit, other FROM {schema}.holdfast_enter_owner(
                p_names[place], p_nonces[place], p_ttls[place], false,
                p_agents[place], p_infos[place], p_channel, p_owners[place]
            ) AS e;
        ELSE
            now_us := {schema}.holdfast_clock();
            INSERT INTO {schema}.holdfast_locks AS l
                (name, method, drawn, queued, nonce, fence, expires, since, agent, info)
            VALUES (
                p_names[place], 'queue', now_us, false, p_nonces[place], now_us, now_us + p_ttls[place], now_us,
                p_agents[place], p_infos[place]
            )
            ON CONFLICT (name) DO UPDATE SET
                method = 'queue', drawn = greatest(l.drawn + 1, excluded.drawn), nonce = excluded.nonce,
                fence = greatest(l.drawn + 1, excluded.drawn), expires = excluded.expires, since = excluded.since,
                agent = excluded.agent, info = excluded.info
            WHERE l.nonce IS NULL AND NOT l.queued AND l.departed IS NULL
            RETURNING 'in', l.fence, l.xmax = 0 INTO outcome, fence, is_new;
            IF NOT FOUND THEN
                SELECT e.* INTO outcome, fence, ahead, remaining, other_limit, other FROM {schema}.holdfast_enter(
                    p_names[place], p_nonces[place], p_ttls[place], true, 1, false,
                    p_agents[place], p_infos[place], p_channel
                ) AS e;
            ELSIF is_new AND fence & 255 = 0 THEN
                reaps_at := fence;
            END IF;
        END IF;
        RETURN NEXT;
        EXIT WHEN outcome <> 'in';
    END LOOP;
    -- Last, for that locks rows out of the order of their names: whoever does may not wait for another one.
    IF reaps_at IS NOT NULL THEN
        PERFORM {schema}.holdfast_reap(reaps_at);
    END IF;
END
$$;

-- Release or withdraw a ticket, and wake who is next. Returns whether it was in until now. (The exclusive holder's is
-- released by a plain statement, for speed: FREE in protocol.py.)
--
-- `p_unheard`: an enter of this ticket got no answer, and may still be on its way on another connection. Then it is
-- remembered for a while that the ticket has left.
CREATE OR REPLACE FUNCTION {schema}.holdfast_leave(p_name text, p_nonce text, p_unheard boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    was_in boolean;
    lock {schema}.holdfast_locks%ROWTYPE;
BEGIN
    IF p_unheard THEN
        now_us := {schema}.holdfast_clock();
        INSERT INTO {schema}.holdfast_locks AS l (name, method, drawn, queued, departed, departed_until)
        VALUES (p_name, 'queue', now_us, false, ARRAY[p_nonce], now_us + {waiter_lease})
        ON CONFLICT (name) DO UPDATE SET
            drawn = greatest(l.drawn + 1, excluded.drawn),  -- as every step does that may not be forgotten: holdfast_reap
            departed = CASE WHEN l.departed_until > now_us THEN l.departed ELSE '{}' END || p_nonce,
            departed_until = excluded.departed_until;
    END IF;
    SELECT * INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name FOR NO KEY UPDATE;
    now_us := {schema}.holdfast_clock();
    IF lock.nonce = p_nonce THEN
        was_in := lock.expires > now_us;
        UPDATE {schema}.holdfast_locks l SET nonce = NULL WHERE l.name = p_name;
    ELSIF lock.queued THEN
        DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.nonce = p_nonce
        RETURNING t.fence IS NOT NULL AND t.expires > now_us INTO was_in;
        IF NOT FOUND OR lock.expires > now_us AND lock.nonce IS NOT NULL THEN
            RETURN false;  -- it had gone before, or was a waiter who leaves the holder to itself
        END IF;
    END IF;
    IF lock.queued THEN
        PERFORM {schema}.holdfast_wake(p_name, now_us);
    END IF;
    RETURN coalesce(was_in, false);
END
$$;

-- Let a lease run for its ttl from now. Returns whether it is still there.
--
-- Of one that shares the lock, this locks the ticket's own row only. That will do: a step that wants to take the ticket
-- out waits for it, looks at the row again, and finds it renewed; or has taken it out, and then there is nothing to
-- renew.
CREATE OR REPLACE FUNCTION {schema}.holdfast_renew(p_name text, p_nonce text, p_ttl bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := {schema}.holdfast_clock();
BEGIN
    UPDATE {schema}.holdfast_locks l SET expires = now_us + p_ttl
    WHERE l.name = p_name AND l.nonce = p_nonce AND l.expires > now_us;
    IF NOT FOUND THEN
        UPDATE {schema}.holdfast_tickets t SET expires = now_us + p_ttl
        WHERE t.name = p_name AND t.nonce = p_nonce AND t.fence IS NOT NULL AND t.expires > now_us;
    END IF;
    RETURN FOUND;
END
$$;

-- End exactly the lease with this fence, and wake who is next. Returns whether there was one.
CREATE OR REPLACE FUNCTION {schema}.holdfast_break(p_name text, p_fence bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    lock {schema}.holdfast_locks%ROWTYPE;
BEGIN
    SELECT * INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name FOR NO KEY UPDATE;
    IF lock.nonce IS NOT NULL AND lock.fence = p_fence THEN
        UPDATE {schema}.holdfast_locks l SET nonce = NULL WHERE l.name = p_name;
    ELSE
        DELETE FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.fence = p_fence;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    IF lock.queued THEN
        PERFORM {schema}.holdfast_wake(p_name, {schema}.holdfast_clock());
    END IF;
    RETURN true;
END
$$;

-- method=advisory: who wants the lock waits at a gate, which is an advisory lock of its session, and PostgreSQL's own
-- business. The lease in the lock's row is the truth: a session that ends opens the gate, but whoever comes through it
-- waits until the lease has run out. `p_gated` says that the gate is ours already; `gated`, that it is now.
--
-- `outcome` and what goes with it are as in holdfast_enter.
CREATE OR REPLACE FUNCTION {schema}.holdfast_pass(
    p_name text, p_nonce text, p_ttl bigint, p_key bigint, p_gated boolean, p_stay boolean, p_agent text, p_info text,
    OUT outcome text, OUT fence bigint, OUT remaining bigint, OUT other text, OUT gated boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := {schema}.holdfast_clock();
    lock {schema}.holdfast_locks%ROWTYPE;
BEGIN
    gated := p_gated OR pg_try_advisory_lock(p_key);
    IF gated THEN
        INSERT INTO {schema}.holdfast_locks AS l (name, method, drawn, queued) VALUES (p_name, 'advisory', now_us, false)
        ON CONFLICT (name) DO UPDATE SET queued = l.queued WHERE false;  -- the row is there now, and locked
    END IF;
    SELECT * INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name;
    -- A lease of this ticket counts, whoever has the gate by now: nobody has heard of it, and the gate went with the
    -- connection. Else the two would wait for each other.
    IF NOT gated AND lock.nonce = p_nonce THEN
        SELECT * INTO lock FROM {schema}.holdfast_locks l WHERE l.name = p_name FOR NO KEY UPDATE;
    END IF;
    now_us := {schema}.holdfast_clock();

    IF lock.method <> 'advisory' AND (
        lock.nonce IS NOT NULL AND lock.expires > now_us OR lock.queued AND EXISTS (
            SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = p_name AND t.expires > now_us
        )
    ) THEN
        outcome := 'method';
        other := lock.method;
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
            departed = CASE WHEN lock.departed_until > now_us THEN lock.departed END,
            nonce = p_nonce, fence = holdfast_pass.fence, expires = now_us + p_ttl, since = now_us,
            agent = p_agent, info = p_info
        WHERE l.name = p_name;
        RETURN;
    END IF;
    IF gated AND NOT (outcome = 'wait' AND p_stay) THEN
        PERFORM pg_advisory_unlock(p_key);
        gated := false;
    END IF;
END
$$;

-- Remove locks that nobody has used for an hour, with tickets of the dead. A row that is in use this very moment is
-- skipped; one that was used a moment ago has drawn a number, which is looked at again once the row is locked. Returns
-- how many were removed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reap(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    WITH old AS (
        SELECT l.name FROM {schema}.holdfast_locks l
        WHERE l.drawn < p_now - {fence_idle} AND (l.nonce IS NULL OR l.expires < p_now - {fence_idle})
        AND NOT EXISTS (
            SELECT 1 FROM {schema}.holdfast_tickets t WHERE t.name = l.name AND t.expires >= p_now - {fence_idle}
        )
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), dead AS (
        DELETE FROM {schema}.holdfast_tickets t USING old WHERE t.name = old.name AND t.expires < p_now - {fence_idle}
    ), reaped AS (
        DELETE FROM {schema}.holdfast_locks l USING old WHERE l.name = old.name RETURNING 1
    )
    SELECT count(*) FROM reaped
$$;

-- Remove marks that need not be kept any more. Returns how many were removed.
CREATE OR REPLACE FUNCTION {schema}.holdfast_reap_marks(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    WITH old AS (
        SELECT m.name FROM {schema}.holdfast_marks m WHERE m.expires <= p_now LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), reaped AS (
        DELETE FROM {schema}.holdfast_marks m USING old WHERE m.name = old.name RETURNING 1
    )
    SELECT count(*) FROM reaped
$$;

-- Tables that an older holdfast made, which goes on working with them. Last, for that waits until nobody uses the table,
-- and meanwhile nobody may wait for us: who looks at the view has locked it before its tables.
ALTER TABLE {schema}.holdfast_tickets ADD COLUMN IF NOT EXISTS owner text COLLATE "C";
