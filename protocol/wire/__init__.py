"""How the agent protocol looks on the wire; ``protocol.codec`` and the envelope of batches read and write it (B.1)."""
