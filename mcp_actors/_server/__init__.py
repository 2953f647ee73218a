"""The server: what it offers, and how each method is answered."""
