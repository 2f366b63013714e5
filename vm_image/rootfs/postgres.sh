#!/bin/sh
# postgres.sh [PRIMARY]: the database, in the control group whose quota holds it to fractions of a CPU (cpu.sh); as a
# standby of PRIMARY where there is one.
echo $$ >/sys/fs/cgroup/work/cgroup.procs
as_postgres="setpriv --reuid postgres --regid postgres --init-groups"
# shellcheck disable=SC2086 # words of a command
[ -z "$1" ] || $as_postgres sh /usr/lib/autoscale/standby.sh "$1" || exit
# shellcheck disable=SC2086
exec $as_postgres postgres -D /var/lib/postgresql/data -c config_file=/etc/autoscale/postgresql.conf
