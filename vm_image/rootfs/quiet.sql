-- What sleep.pl asks: one row of the asker's own process; client sessions; sessions ever begun; the time of the last change
-- of a session's state and its age in seconds; the seconds within which changes must be archived (0: never); what forbids
-- sleep now; and the processes that serve no client.
-- A job of pg_cron would be missed: nothing wakes a guest for it. The extension can live in one database only.
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') AS cron,
    coalesce(current_setting('cron.database_name', true) <> current_database(), false) AS jobs \gset
\if :cron
SELECT EXISTS (SELECT FROM cron.job WHERE active) AS jobs \gset
\endif
WITH others AS MATERIALIZED (SELECT * FROM pg_stat_activity WHERE pid <> pg_backend_pid()),
archiver AS (SELECT current_setting('archive_mode') <> 'off' AS works),
reasons (reason, holds) AS (VALUES
    ('transaction', EXISTS (
        SELECT FROM others
        WHERE backend_type NOT IN ('walsender', 'autovacuum worker') AND (xact_start IS NOT NULL OR state <> 'idle'))),
    ('standby', pg_is_in_recovery()),
    -- A subscription whose worker is just between two attempts would stay behind.
    ('replication', EXISTS (
        SELECT FROM others WHERE backend_type IN ('walsender', 'walreceiver', 'logical replication worker'))
        OR EXISTS (SELECT FROM pg_replication_slots WHERE active)
        OR EXISTS (SELECT FROM pg_subscription WHERE subenabled)),
    ('prepared', EXISTS (SELECT FROM pg_prepared_xacts)),
    ('archiving', (SELECT works FROM archiver) AND (
        EXISTS (SELECT FROM pg_stat_archiver WHERE last_failed_time > coalesce(last_archived_time, '-infinity'))
        OR EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'))),
    ('autovacuum', EXISTS (SELECT FROM others WHERE backend_type = 'autovacuum worker')
        OR EXISTS (SELECT FROM pg_stat_progress_vacuum)),
    -- Of a backup by hand nothing is left to see but the session's last query.
    ('backup', EXISTS (SELECT FROM pg_stat_progress_basebackup)
        OR EXISTS (SELECT FROM others WHERE query ~* '\mpg_backup_start\M')),
    ('cron', :'jobs'),
    ('untracked', current_setting('update_process_title') = 'off' OR current_setting('track_activities') = 'off'))
SELECT pg_backend_pid(),
    count(*) FILTER (WHERE backend_type = 'client backend'),
    (SELECT sum(sessions) FROM pg_stat_database),
    max(state_change) FILTER (WHERE backend_type = 'client backend'),
    coalesce(extract(epoch FROM
        clock_timestamp() - max(state_change) FILTER (WHERE backend_type = 'client backend')), 0),
    (SELECT extract(epoch FROM current_setting('archive_timeout')::interval) FROM archiver WHERE works),
    (SELECT string_agg(reason, ' ') FROM reasons WHERE holds),
    string_agg(pid::text, ' ') FILTER (WHERE backend_type <> 'client backend')
FROM others;
