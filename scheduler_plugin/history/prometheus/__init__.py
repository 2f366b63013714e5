"""The history in a Prometheus that scrapes the programs, queried over its HTTP API."""
