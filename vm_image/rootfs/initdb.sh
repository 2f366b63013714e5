#!/bin/sh
# initdb.sh ROOT PRELOADED: makes the guest's empty database in ROOT, equal to the byte for equal packages.
# Three things of initdb are new each time: the database's identifier (clock and process number), a secret (random), and
# the log that names both, with times. There is no option for them. So the first two, made of the list of packages, are
# put into pg_control, and pg_resetwal, as in pg_upgrade, writes a new log under a clock that stands still: the library
# PRELOADED (a path in ROOT) holds it at SOURCE_DATE_EPOCH.
set -eu
root=$1 preloaded=$2
data=/var/lib/postgresql/data
control=$root$data/global/pg_control
as_postgres() {
    chroot "$root" setpriv --reuid postgres --regid postgres --init-groups \
        env -i PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin LC_ALL=C.UTF-8 TZ=Etc/UTC "$@"
}
# put HEX OFFSET: writes bytes over those of pg_control.
put() { perl -e 'print pack "H*", shift' "$1" | dd of="$control" bs=1 seek="$2" conv=notrunc status=none; }
shown() { as_postgres pg_controldata $data | sed -n "s/^$1: *//p"; }

rm -rf "$root/var/lib/postgresql" "$root/etc/postgresql"
mkdir -p "$root/var/lib/postgresql"
chroot "$root" chown postgres:postgres /var/lib/postgresql
as_postgres initdb --no-sync --auth=trust --username=postgres --encoding=UTF8 --pgdata=$data >/dev/null
# What initdb has tried out on this machine; the guest has a file of its own (postgresql.conf).
sed -i 's/^\(max_connections = \)[0-9]*/\1100/; s/^\(shared_buffers = \)[0-9a-zA-Z]*/\1128MB/
    s/^\(dynamic_shared_memory_type = \)[a-z]*/\1posix/' "$root$data/postgresql.conf"
# Who standbys copy and stream as.
echo "CREATE ROLE replicator REPLICATION LOGIN" | as_postgres postgres --single -D $data postgres >/dev/null

secret=$(sha256sum "$root/var/lib/dpkg/status" | cut -d ' ' -f 1)
identifier=$(echo "$secret" | cut -c -14)65 # the least byte first: below 2^63, as those of initdb
# Where postgres 15 keeps them on amd64; what it reads back is compared. pg_resetwal also renews the file's checksum.
put "$identifier" 0
put "$secret" 256
as_postgres LD_PRELOAD="$preloaded" FAKETIME_FMT=%s FAKETIME="$SOURCE_DATE_EPOCH" pg_resetwal --force $data >/dev/null
rm -f "$root$data"/pg_stat/*
# same WHAT SHOWN EXPECTED
same() {
    [ "$2" = "$3" ] || { echo "E: the $1 of the new database is \"$2\", not \"$3\"" && exit 1; }
}
same identifier "$(shown 'Database system identifier')" "$(perl -e 'print unpack "Q<", pack "H*", shift' "$identifier")"
same secret "$(shown 'Mock authentication nonce')" "$secret"
same time "$(shown 'Time of latest checkpoint')" "$(LC_ALL=C.UTF-8 TZ=Etc/UTC date -d "@$SOURCE_DATE_EPOCH" +%c)"
