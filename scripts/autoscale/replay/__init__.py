"""Replays recorded workloads with several policies, and scores them against an oracle that knows the future (B.5)."""
