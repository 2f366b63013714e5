#!/bin/sh
# The database's side of GET /database and of sleep.pl: one psql that stays. Starting one, and its connection, would cost
# an emulated guest 0.4 s of CPU for each question.
# Questions come as lines through a FIFO that only root can open (see get_database in daemon.sh). The first is empty: it
# starts psql. An error ends psql, and the next question starts another.
exec <>/run/autoscale.ask
read -r _
# Longer than anybody waits: one that gave up would have to begin again, and the next question would come as slowly.
PGCONNECT_TIMEOUT=10 PGOPTIONS="-c statement_timeout=10s -c idle_session_timeout=0" exec psql -XAtq -U postgres -h /run/postgresql -v ON_ERROR_STOP=1
