"""The same questions, asked of Prometheus."""
