"""The client: its handshake, requests, subscriptions, and its answers to what servers ask."""
