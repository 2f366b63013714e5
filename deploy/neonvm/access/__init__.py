"""Access to runner pods: who may speak to one, and how both sides prove who they are (decision 34)."""
