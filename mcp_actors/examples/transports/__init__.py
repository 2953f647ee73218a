"""Transports that live outside the engine, each in one file, and the guide to writing one: see README.md here."""
