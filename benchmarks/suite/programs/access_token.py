"""An access token of the load for servers that verify one, and the public key that it is signed with.

Both are constant, so that the load needs no cryptography. The private key is gone.
"""

from __future__ import annotations

__all__ = ["ISSUER", "PUBLIC_KEY", "RESOURCE", "SCOPE", "TOKEN"]

ISSUER, RESOURCE, SCOPE = "https://as.example", "https://mcp.example/mcp", "mcp:use"
PUBLIC_KEY = {
    "kty": "EC",
    "crv": "P-256",
    "kid": "benchmark",
    "use": "sig",
    "x": "II3wQEDlqRDHrfA8ZHdODh1MDXQKNFFV61Y-e58horM",
    "y": "oLh8HDTwz1ozZoh5YRTI6RbmQWnYkQU5l_7Q1cL_qSg",
}
# ES256, with the claims of RFC 9068; it expires in the year 2100.
TOKEN = (
    "eyJhbGciOiJFUzI1NiIsInR5cCI6ImF0K2p3dCIsImtpZCI6ImJlbmNobWFyayJ9.eyJpc3MiOiJodHRwczovL2FzLmV4YW1"
    "wbGUiLCJhdWQiOiJodHRwczovL21jcC5leGFtcGxlL21jcCIsInN1YiI6IjNiNmMxZjUyLTdjMWUtNGEzOS05YjQ1LTZhMmE"
    "yZjBhOGYxMCIsImNsaWVudF9pZCI6ImJlbmNobWFyay1jbGllbnQiLCJzY29wZSI6Im1jcDp1c2UgZmlsZXM6cmVhZCIsImp"
    "0aSI6IjhmMGMyYjFlNmQiLCJpYXQiOjE1Nzc4MzY4MDAsImV4cCI6NDEwMjQ0NDgwMH0.CNWIsyiyZvakk_k0gcLCPKZCl7R"
    "6gB5XopuVtt57HggZeV0hlxxX9CuevhrVe3D6eyLNvm30jfY6PxIJLCU4rw"
)
