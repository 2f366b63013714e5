#!/bin/sh
# AUTOSCALE_PASSWORD=PASSWORD password.sh: sets the password of the database's accounts. Fails until the database is ready.
# A standby has the accounts of its primary, and streams from it with the password stored here (standby.sh).
set -eu
kept=/run/autoscale.pgpass
umask 077
printf '*:*:*:*:%s\n' "$(printf %s "$AUTOSCALE_PASSWORD" | busybox sed 's/[\\:]/\\&/g')" >$kept.new
chown postgres $kept.new
mv $kept.new $kept
# A useless psql at each attempt while the guest boots would take most of an emulated CPU.
read -r state <<END
$(busybox sed -n 8p /var/lib/postgresql/data/postmaster.pid 2>&1)
END
[ "$state" = ready ] || { echo "${state:-it is starting}" && exit 1; }
exec psql -XAtq -U postgres -h /run/postgresql -v ON_ERROR_STOP=1 <<'END'
\getenv password AUTOSCALE_PASSWORD
SET statement_timeout = '8s';
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SELECT pg_is_in_recovery() AS standby \gset
\if :standby
\else
ALTER ROLE postgres PASSWORD :'password';
ALTER ROLE replicator PASSWORD :'password';
\endif
END
