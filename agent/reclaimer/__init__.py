"""``python -m agent.reclaimer``: holds the memory of pods below a size for an agent, which has no right to (B.7).

It runs as UID 0 without capabilities, beside the agent of its node, and its only door is a unix socket.
"""
