"""Publishing of certificates, and the CA bundle of another issuer (B.4)."""
