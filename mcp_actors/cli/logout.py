"""``mcp-actors logout``."""

from __future__ import annotations

import click

from mcp_actors.cli.failures import reported, traceback_option
from mcp_actors.cli.interruptible import run_interruptible
from mcp_actors.cli.login_session import log_out, login_url
from mcp_actors.cli.output import safe
from mcp_actors.cli.stored_login import forget_words, stored_auth, token_store

__all__ = ["command"]


@click.command("logout", short_help="Forget a login.")
@login_url
@traceback_option
def command(url: str, show_traceback: bool) -> None:
    """Forget the login at a server: its tokens, and the words that its client was registered with.

    The tokens are revoked where the authorization server lets us. They are forgotten here even if it cannot be reached.
    """

    async def work() -> bool:
        oauth = await stored_auth(url)
        if oauth is None:
            return False
        await log_out(oauth, url)
        await forget_words(token_store(), url)
        return True

    with reported(show_traceback):
        known = run_interruptible(work, "interrupted; to be sure, run it again")
    click.echo(f"logged out of {safe(url)}" if known else f"there was no login at {safe(url)}")
