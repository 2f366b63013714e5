"""``python -m agent.reclaimer``: holds pods below a memory size for the unprivileged agent of its node (B.7).

It runs as UID 0 without capabilities in the agent's pod, and listens only on a unix socket.
"""
