"""The subscribed uris that cover a uri: it itself and those above it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["covering", "covers", "levels"]


def covering(uri: str, subscribed: Mapping[str, object]) -> Iterable[str]:
    """The subscribed uris that are ``uri`` or lie above it, nearest first.

    Nearest first, so that a subscriber to several of them hears of the nearest, once. It looks at the levels of
    ``uri`` or at all that is subscribed, whichever is fewer: a path of endless slashes costs nothing special.
    """
    if 2 * uri.count("/") >= len(subscribed):
        return sorted((each for each in subscribed if covers(each, uri)), key=len, reverse=True)
    return [each for each in levels(uri) if each in subscribed]


def covers(above: str, uri: str) -> bool:
    """Whether ``uri`` is ``above`` or lies below it."""
    return uri.startswith(above) and (len(above) == len(uri) or above.endswith("/") or uri[len(above)] == "/")


def levels(uri: str) -> Iterator[str]:
    yield uri
    shortest = end = len(uri)
    while (end := uri.rfind("/", 0, end)) >= 0:
        if end + 1 < shortest:  # else it was the level before, with nothing between two slashes
            yield uri[: end + 1]
        yield uri[:end]
        shortest = end
