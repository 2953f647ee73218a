"""The questions and the news of upstreams, on their way to the client that they are for."""
