"""Publishing of certificates, and the bundle gathered if another issuer makes them (B.4)."""
