"""The formats that images are made of and travel in (pure)."""
