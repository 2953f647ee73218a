"""``mcp-actors login``."""

from __future__ import annotations

import os

import attrs
import click
import trio

from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.interruptible import run_interruptible
from mcp_actors.cli.login_session import log_in, login_url, told_browser
from mcp_actors.cli.login_text import login_lines
from mcp_actors.cli.output import safe
from mcp_actors.cli.stored_login import LoginWords, load_words, save_words, token_store

__all__ = ["command"]

# Seconds for the last step, keeping the words of a login that succeeded, which Ctrl-C does not interrupt.
SAVE_TIMEOUT = 5.0


@click.command("login", short_help="Log in to a server.")
@login_url
@click.option("--client-id", metavar="ID", help="A client that was registered beforehand.")
@click.option(
    "--client-secret-env",
    metavar="VAR",
    help="The environment variable that holds the secret of that client, if it has one.",
)
@click.option(
    "--client-metadata-url",
    metavar="URL",
    help="The https URL of a client ID metadata document, which is the client's id.",
)
@click.option(
    "--scope",
    metavar="SCOPE",
    multiple=True,
    help="Scopes beyond those that the server names; blanks between several, may be repeated.",
)
@click.option("--no-browser", is_flag=True, help="Show the URL to open, and take the answer as text.")
@traceback_option
def command(
    url: str,
    client_id: str | None,
    client_secret_env: str | None,
    client_metadata_url: str | None,
    scope: tuple[str, ...],
    no_browser: bool,
    show_traceback: bool,
) -> None:
    """Log in to a server that asks for authorization: a browser opens, once.

    list, call, read and prompt use the login from then on, and renew it without a person where the authorization server
    lets them. Tokens are kept in a file that only you can read. The client registers itself where it can; what the
    options say of it otherwise is kept with the login, its secret too, so that no other command needs them.

    Ctrl-C leaves everything as it was.

    \b
    mcp-actors login https://mcp.example.org/mcp
    mcp-actors login https://mcp.example.org/mcp --client-id my-client --scope 'mcp:read mcp:write'
    """
    secret = _secret(client_id, client_secret_env)
    if client_id is not None and client_metadata_url is not None:
        raise click.UsageError(
            "--client-id and --client-metadata-url exclude each other: a client has one id"
        )
    scopes = list(dict.fromkeys(word for each in scope for word in each.split()))

    async def work() -> list[str]:
        store = token_store()
        words = await load_words(store, url) or LoginWords()
        if client_id is not None or client_metadata_url is not None:
            words = LoginWords(client_id, secret, client_metadata_url, words.scopes)
        if scopes:
            words = attrs.evolve(words, scopes=scopes)
        try:
            oauth = words.oauth(store, told_browser(no_browser))
        except (ValueError, TypeError) as error:
            raise WrongUsage(str(error)) from error
        status = await log_in(oauth, url)
        with trio.move_on_after(SAVE_TIMEOUT, shield=True):
            await save_words(store, url, attrs.evolve(words, issuer=status.issuer))
        return login_lines(status, url)

    with reported(show_traceback):
        lines = run_interruptible(work, "interrupted; no login was stored")
    click.echo(f"logged in to {safe(url)}")
    for line in lines:
        click.echo(line)


def _secret(client_id: str | None, variable: str | None) -> str | None:
    """Returns the secret of the client that was registered beforehand, if it has one."""
    if variable is None:
        return None
    if client_id is None:
        raise click.UsageError("--client-secret-env is for the client of --client-id")
    secret = os.environ.get(variable)
    if not secret:
        # The word may be the secret itself, given by mistake, so it is not shown.
        raise click.UsageError(
            "the environment variable that --client-secret-env names is not set; it takes the name of a variable, "
            "not a secret"
        )
    return secret
