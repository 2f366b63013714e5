"""A storm on the real service, judged by the responses that agents received and not by the ledger."""
