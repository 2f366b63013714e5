"""A history in a Prometheus that scrapes the programs already: the same questions, by its HTTP API."""
