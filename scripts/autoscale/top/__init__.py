"""``autoscale top``: nodes and VMs in a terminal. `columns` and `view` decide what is shown; `app` draws it."""
