"""The version of the product, which both programs print for `--version`."""

from functools import cache
from importlib.metadata import version
from typing import Annotated

import typer

DISTRIBUTION = "dtfm"
"""Name by which pip knows this product."""


@cache
def product_version() -> str:
    """Return the version that is installed, e.g. `0.1.0`."""
    return version(DISTRIBUTION)


def _say_version(context: typer.Context, asked: bool) -> None:
    if asked:
        typer.echo(f"{context.info_name} {product_version()}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version, and no more.")
]
"""Option of a program, beside its commands."""
