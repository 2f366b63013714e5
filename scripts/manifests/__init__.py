"""Plain manifests and the table of values, which are rendered from the chart."""
