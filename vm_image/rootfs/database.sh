#!/bin/sh
# The database's side of GET /database: one psql that stays. Starting one, and its connection, would cost an emulated
# guest 0.4 s of CPU for each question.
# Questions come as lines through a FIFO that only root can open (see get_database in daemon.sh). The first is empty: it
# starts psql, so a guest that is never asked has none. An error ends psql, and the next question starts another.
exec <>/run/autoscale.ask
read -r _
PGCONNECT_TIMEOUT=2 PGOPTIONS="-c statement_timeout=3s" exec psql -XAtq -U postgres -h /run/postgresql -v ON_ERROR_STOP=1
