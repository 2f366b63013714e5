"""Renders the plain manifests and the table of values from the chart."""
