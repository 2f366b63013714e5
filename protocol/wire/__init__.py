"""The agent protocol on the wire; ``protocol.codec`` and the envelope of batches read and write it (B.1)."""
