-- The response to GET /database. A standby is behind if it has not replayed what it received a second ago; its lag is the
-- age of its last replayed commit, which alone would be wrong for the standby of an idle primary.
\set QUIET on
SELECT coalesce(pg_last_wal_receive_lsn(), '0/0') AS received,
    coalesce(pg_last_wal_replay_lsn() < pg_last_wal_receive_lsn(), false) AS behind \gset
\if :behind
SELECT pg_sleep(1) \g /dev/null
\endif
SELECT json_build_object(
    'standby', pg_is_in_recovery(),
    'streaming', EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'),
    'lagSeconds', CASE
        WHEN NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= :'received' THEN 0
        ELSE abs(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()))
    END,
    'sessions', count(*),
    'oldestTransactionSeconds', abs(extract(epoch FROM clock_timestamp() - min(xact_start))))
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid();
