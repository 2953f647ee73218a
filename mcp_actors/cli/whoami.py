"""``mcp-actors whoami``."""

from __future__ import annotations

import click

from mcp_actors.cli.failures import LoginNeeded, reported, traceback_option
from mcp_actors.cli.interruptible import run_interruptible
from mcp_actors.cli.login_session import login_status, login_url
from mcp_actors.cli.login_text import LoginStatus, login_lines
from mcp_actors.cli.output import safe
from mcp_actors.cli.stored_login import stored_auth
from mcp_actors.platform.command_lines import join_words

__all__ = ["command"]


@click.command("whoami", short_help="Show a login.")
@login_url
@traceback_option
def command(url: str, show_traceback: bool) -> None:
    """Show the login that is stored for a server: its issuer, resource, client, scopes and expiry, never its tokens.

    Nothing is asked of anybody: a login that was revoked is shown until it is used. Exit code 3 if there is none.
    """

    async def work() -> LoginStatus | None:
        oauth = await stored_auth(url)
        return None if oauth is None else await login_status(oauth, url)

    with reported(show_traceback):
        status = run_interruptible(work, "interrupted")
        if status is None:
            raise LoginNeeded(
                f"no login is stored for {safe(url)}; run: mcp-actors login {join_words([url])}"
            )
    for line in login_lines(status, url):
        click.echo(line)
