"""What is spoken with programs in a guest."""
