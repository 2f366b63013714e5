"""Beside the original: its controller, agent and scheduler as they are, each in a conversation with ours (B.11)."""
