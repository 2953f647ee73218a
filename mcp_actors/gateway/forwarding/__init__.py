"""Requests of clients on their way to an upstream, and their results on the way back."""
