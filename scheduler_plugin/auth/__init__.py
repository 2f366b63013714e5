"""Who asks for permits: bearer tokens, and whom each may speak for (B.4)."""
