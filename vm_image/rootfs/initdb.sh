#!/bin/sh
# initdb.sh ROOT PRELOADED: creates the guest's empty database in ROOT, reproducibly for equal packages.
# Three results of initdb differ each time: the system identifier (from clock and process id), a random secret, and the WAL,
# which contains both, and times. initdb has no options for them. So the first two, derived from the list of packages, are
# written into pg_control, and pg_resetwal writes a new WAL, as in pg_upgrade, with the clock stopped at SOURCE_DATE_EPOCH by
# the library PRELOADED (a path in ROOT).
set -eu
root=$1 preloaded=$2
data=/var/lib/postgresql/data
control=$root$data/global/pg_control
as_postgres() {
    chroot "$root" setpriv --reuid postgres --regid postgres --init-groups \
        env -i PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin LC_ALL=C.UTF-8 TZ=Etc/UTC "$@"
}
# put HEX OFFSET: overwrites bytes of pg_control.
put() { perl -e 'print pack "H*", shift' "$1" | dd of="$control" bs=1 seek="$2" conv=notrunc status=none; }
shown() { as_postgres pg_controldata $data | sed -n "s/^$1: *//p"; }

rm -rf "$root/var/lib/postgresql" "$root/etc/postgresql"
mkdir -p "$root/var/lib/postgresql"
chroot "$root" chown postgres:postgres /var/lib/postgresql
as_postgres initdb --no-sync --auth=trust --username=postgres --encoding=UTF8 --pgdata=$data >/dev/null
# Values that initdb derives from this machine; the guest has its own postgresql.conf.
sed -i 's/^\(max_connections = \)[0-9]*/\1100/; s/^\(shared_buffers = \)[0-9a-zA-Z]*/\1128MB/
    s/^\(dynamic_shared_memory_type = \)[a-z]*/\1posix/' "$root$data/postgresql.conf"
# The role with which standbys copy and stream.
echo "CREATE ROLE replicator REPLICATION LOGIN" | as_postgres postgres --single -D $data postgres >/dev/null

secret=$(sha256sum "$root/var/lib/dpkg/status" | cut -d ' ' -f 1)
identifier=$(echo "$secret" | cut -c -14)65 # little-endian: below 2^63, like initdb's
# Their offsets in postgres 15 on amd64, which are verified below. pg_resetwal also updates the file's checksum.
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
