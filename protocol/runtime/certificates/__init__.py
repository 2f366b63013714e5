"""Certificates that our programs make, keep in Secrets and renew (B.4). Needs ``cryptography``: not for the agent."""
