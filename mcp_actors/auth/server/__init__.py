"""The server's side of authorization: who may be served, and the answer to everybody else."""
