"""A history in a Prometheus that scrapes the programs, over its HTTP API."""
