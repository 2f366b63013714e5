"""Wire formats of the agent protocol; ``protocol.codec`` and the batch envelope use them (B.1)."""
