"""``autoscale top``: nodes and databases in a terminal. ``fleet`` reads them, and ``app`` draws them."""
