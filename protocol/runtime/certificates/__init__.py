"""Certificates that our programs issue, store in Secrets and renew (B.4). Needs ``cryptography``: not for the agent."""
