"""``--header`` and ``--bearer-env``: the headers that a person gives to the requests of a command.

No error shows a value, for it may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import click

__all__ = ["HTTP_SCHEMES", "bearer_from_environment", "given_headers", "takes_headers"]

# Bindings whose requests, or whose opening, have headers.
HTTP_SCHEMES = frozenset({"http", "https", "http+unix", "ws", "wss"})

# RFC 9110 sections 5.1 and 5.5; what is not ASCII means something else to each server.
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
# The characters of RFC 6750 section 2.1, and what keys of a server's own making have beside them.
_TOKEN = re.compile(r"[\x21-\x7e]+")


def takes_headers(url: str) -> bool:
    """Returns whether requests to ``url`` have headers."""
    return url.partition(":")[0].lower() in HTTP_SCHEMES


def given_headers(words: Sequence[str]) -> dict[str, str]:
    """Parses each ``NAME:VALUE``; the space round a value is no part of it.

    Raises:
        click.UsageError: A word is nothing like that, or a name comes twice.
    """
    headers: dict[str, str] = {}
    for position, word in enumerate(words, 1):
        name, colon, value = word.partition(":")
        name, value = name.strip(), value.strip()
        if not colon:
            # The word may be a secret whose name was forgotten.
            raise click.UsageError(f"--header number {position} has no colon: write --header NAME:VALUE")
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"--header number {position} has no usable name before its colon")
        if not _VALUE.fullmatch(value):
            raise click.UsageError(
                f"the value of --header {name} holds a line break or another character that no header can have"
            )
        if name.lower() in map(str.lower, headers):
            raise click.UsageError(f"--header {name} is given twice")
        headers[name] = value
    return headers


def bearer_from_environment(variable: str) -> str:
    """Returns the token that an environment variable holds.

    Raises:
        click.UsageError: The variable is not set or empty, or its value can be no token.
    """
    if variable not in os.environ:
        # The word may be the token itself, given by mistake, so it is not shown.
        raise click.UsageError(
            "the environment variable that --bearer-env names is not set; it takes the name of a variable, not a token"
        )
    token = os.environ[variable].strip()
    if not token:
        raise click.UsageError(f"the environment variable {variable} is empty")
    if not _TOKEN.fullmatch(token):
        raise click.UsageError(f"the environment variable {variable} holds no token: one has no blanks in it")
    return token
