"""A storm over the real service, judged by what agents were really answered and not by the ledger."""
