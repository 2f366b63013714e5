#!/bin/sh
# The database, in the control group whose quota holds it to fractions of a CPU (cpu.sh).
echo $$ >/sys/fs/cgroup/work/cgroup.procs
exec setpriv --reuid postgres --regid postgres --init-groups postgres -D /var/lib/postgresql/data \
    -c config_file=/etc/autoscale/postgresql.conf
