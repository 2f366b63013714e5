#!/bin/sh
# A permanent psql for GET /database and sleep.pl: starting and connecting one for each query would cost 0.4 s of CPU in an
# emulated guest.
# Commands are lines in a FIFO that only root can open (see get_database in daemon.sh). The first line, which is empty,
# starts psql. An error ends psql, and the next line starts another.
exec <>/run/autoscale.ask
read -r _
# Longer than clients wait: after a shorter timeout, the next query would have to connect again, just as slowly.
PGCONNECT_TIMEOUT=10 PGOPTIONS="-c statement_timeout=10s -c idle_session_timeout=0" exec psql -XAtq -U postgres -h /run/postgresql -v ON_ERROR_STOP=1
