"""The ``autoscale`` command."""
