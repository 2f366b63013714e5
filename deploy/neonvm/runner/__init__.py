"""What runs beside one guest: it keeps the guest at the size that its VM asks for."""
