"""The scheduler's metrics, one file for each of its jobs."""
