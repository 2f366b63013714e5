#!/bin/sh
# postgres.sh [PRIMARY]: runs the database in the control group with the CPU quota (cpu.sh), as a standby of PRIMARY if
# given. NeonVM's runner provides environment, command and arguments of the VM's spec, quoted for a shell; a command
# replaces the database.
echo $$ >/sys/fs/cgroup/work/cgroup.procs
as_postgres="setpriv --reuid postgres --regid postgres --init-groups"
# shellcheck disable=SC2086 # words of a command
[ -z "$1" ] || $as_postgres sh /usr/lib/autoscale/standby.sh "$1" || exit
given=/neonvm/runtime
# shellcheck disable=SC1091 # exists only with NeonVM's runner
[ ! -f $given/env.sh ] || . $given/env.sh
set -- postgres -D /var/lib/postgresql/data -c config_file=/etc/autoscale/postgresql.conf
[ ! -f $given/command.sh ] || eval "set -- $(cat $given/command.sh)"
[ ! -f $given/args.sh ] || eval "set -- \"\$@\" $(cat $given/args.sh)"
# shellcheck disable=SC2086
exec $as_postgres "$@"
