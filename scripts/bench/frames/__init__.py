"""Traffic that reaches a VM while it moves: single frames, and segments of TCP."""
