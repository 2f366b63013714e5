"""The lines of ``autoscale check``, one table for each part of an installation."""
