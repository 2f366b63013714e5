#!/bin/sh
# standby.sh PRIMARY: makes the data directory a streaming standby of the database at PRIMARY, once; runs as postgres.
# The primary requires the owner's password (password.sh); until it is set, the copy fails.
# A finished copy has a standby.signal. It is created in another folder and renamed when it is complete, so that a power
# failure leaves either no copy or a complete one.
set -eu
primary=$1
home=/var/lib/postgresql

[ ! -e $home/data/standby.signal ] || exit 0
rm -rf $home/copy
until pg_basebackup --no-password --pgdata=$home/copy --write-recovery-conf --wal-method=stream --checkpoint=fast \
    --dbname="host=$primary user=replicator passfile=/run/autoscale.pgpass application_name=$(busybox hostname) connect_timeout=10"; do
    echo "autoscale: copying from the primary $primary failed; retrying"
    busybox sleep 1
done
rm -rf $home/data
mv $home/copy $home/data
