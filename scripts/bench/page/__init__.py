"""What the live page costs, and how soon it shows a permit."""
