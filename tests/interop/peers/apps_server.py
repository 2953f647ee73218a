"""A server with a page (SEP-1865) by the helpers of others, over stdio: ``apps_server.py official|fastmcp``."""

from __future__ import annotations

import sys

HTML = "<!doctype html><title>Clock</title>"
ORIGIN = "https://api.example.com"
URI = "ui://clock/view"

if sys.argv[1] == "official":
    from mcp.server.apps import Apps, ResourceCsp, ResourcePermissions, client_supports_apps
    from mcp.server.mcpserver import Context, MCPServer

    apps = Apps()

    @apps.tool(resource_uri=URI)
    def show(ctx: Context) -> str:
        return f"shown {client_supports_apps(ctx)}"

    @apps.tool(resource_uri=URI, visibility=["app"])
    def refresh() -> str:
        return "fresh"

    apps.add_html_resource(
        URI,
        HTML,
        csp=ResourceCsp(connect_domains=[ORIGIN]),
        permissions=ResourcePermissions(clipboard_write={}),
        prefers_border=True,
    )
    MCPServer("official", extensions=[apps]).run()
else:
    from fastmcp import Context, FastMCP
    from fastmcp.apps import AppConfig, ResourceCSP, ResourcePermissions

    server = FastMCP("fastmcp")

    @server.tool(app=AppConfig(resource_uri=URI))
    def show(ctx: Context) -> str:
        return f"shown {ctx.client_supports_extension('io.modelcontextprotocol/ui')}"

    @server.tool(app=AppConfig(resource_uri=URI, visibility=["app"]))
    def refresh() -> str:
        return "fresh"

    @server.resource(
        URI,
        app=AppConfig(
            csp=ResourceCSP(connect_domains=[ORIGIN]),
            permissions=ResourcePermissions(clipboard_write={}),
            prefers_border=True,
        ),
    )
    def view() -> str:
        return HTML

    server.run(show_banner=False)
