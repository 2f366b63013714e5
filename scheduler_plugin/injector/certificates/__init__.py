"""How certificates are published, and the bundle gathered if another issuer makes them (B.4)."""
