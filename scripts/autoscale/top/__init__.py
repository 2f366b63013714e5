"""``autoscale top``: nodes and databases in a terminal. `columns` and `view` decide what is shown; `app` draws it."""
