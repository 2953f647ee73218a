"""``mcp-actors bench --compare A.json B.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import click

from mcp_actors.bench.compare import Comparison, compare
from mcp_actors.bench.errors import LoadError
from mcp_actors.bench.results import METRICS, Document, place_text
from mcp_actors.cli.failures import EXIT_CROSSED, WrongUsage, reported, traceback_option
from mcp_actors.printable import safe

__all__ = ["compare_command"]


_WORDS = {"regression": "worse", "improvement": "better"}


@click.command("bench --compare")
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="A.json")
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="B.json")
@click.option(
    "--least",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Smaller changes are none.",
)
@click.option(
    "--fail-if",
    type=click.Choice(["regression"]),
    multiple=True,
    help="Exit with 6 if a figure became worse, and that is no chance.",
)
@traceback_option
def compare_command(
    before: Path, after: Path, least: float, fail_if: tuple[str, ...], show_traceback: bool
) -> None:
    """Compare two files that `mcp-actors bench --json` wrote, with intervals."""
    with reported(show_traceback):
        try:
            # They may be of two servers: the same load is the same place.
            first, second = (_of_one_place(Document.read(path)) for path in (before, after))
        except LoadError as error:
            raise WrongUsage(str(error)) from error
        comparison = compare(first, second, least=least / 100)
        for line in _lines(comparison):
            click.echo(safe(line))
    if fail_if and comparison.regressions:
        raise click.exceptions.Exit(EXIT_CROSSED)


def _lines(comparison: Comparison) -> Iterator[str]:
    """Returns each figure of both files, place by place, with its ratio and what that means."""
    for place in dict.fromkeys(change.key.at for change in comparison.changes):
        yield place_text(place)
        for change in comparison.changes:
            if change.key.at != place:
                continue
            metric, (low, high, _) = METRICS[change.metric], change.interval
            verdict = _WORDS.get(change.verdict, change.verdict)
            if change.verdict in _WORDS and not change.sure:
                verdict += ", which may be chance"
            yield (
                f"  {f'{metric.title}, {metric.unit}':26} {change.before:>12,.4g} {change.after:>12,.4g}   "
                f"{change.times:.2f}x ({low:.2f} to {high:.2f})  {verdict}"
            )
    if not comparison.changes:
        yield "nothing can be compared: the files have no load in common"
    yield from (f"Mind: {remark}" for remark in comparison.remarks)


def _of_one_place(document: Document) -> Document:
    rows = [dataclasses.replace(row, transport="-", era="-", peer="-") for row in document.rows]
    return dataclasses.replace(document, rows=rows)
