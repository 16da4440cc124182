"""Command of the owner's page: the links that lead to it."""

from typing import Annotated

import typer

from dtfm_coordinator.commands.option_types import StateDir
from dtfm_protocol.process import command_line


def page(
    state_dir: StateDir,
    renew: Annotated[bool, typer.Option("--renew", help="Make new links; those of before lead in no more.")] = False,
) -> None:
    """Print the links to the owner's page that `serve --web` shows."""
    from dtfm_coordinator.serve.web.page_links import PageLinks, link, page_url

    with command_line.guarded():
        url, links = page_url(state_dir), PageLinks(state_dir)
        keys = links.renew() if renew else links.keys()
        typer.echo(f"for you, to look and to act:   {link(url, keys.owner)}")
        typer.echo(f"to hand out, to look alone:    {link(url, keys.viewer)}")
