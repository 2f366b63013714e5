"""What Prometheus hears of the scheduler, one file for each of its jobs."""
