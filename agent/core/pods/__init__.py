"""Rules for postgres in pods that are resized in place (B.7)."""
