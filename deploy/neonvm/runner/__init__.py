"""The program beside one guest, which keeps it at the size that its VM asks for."""
