#!/bin/sh
# shutdown.sh: stops the database with a fast shutdown and powers the machine off.
export PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin
setpriv --reuid postgres --regid postgres --init-groups pg_ctl stop -D /var/lib/postgresql/data -m fast -w -t 20
exec busybox poweroff -f
