"""JSON to the vocabulary and back: one cattrs converter for each revision, strict and quick.

General layout: `make_converter` registers two hook factories for the classes of `mcp_actors.types` and one for their
unions; cattrs calls them when a class is first met and keeps what they make, so a converter costs next to nothing
until it is used. The hooks walk over tables made from the attrs fields: reading costs by the members that came,
writing by the fields of the class. Nested classes are looked up in the converter again, so that a hook registered
there for one class is obeyed everywhere.

What is typed ``Any``, or a dict or list of it, goes through untouched: it is neither copied nor looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from cattrs import Converter, transform_error
from cattrs.errors import BaseValidationError

from mcp_actors._eras.structure import StructureError, class_reader, reader_of
from mcp_actors._eras.unstructure import class_writer, writer_by_class
from mcp_actors._eras.vocabulary import Hook, is_vocabulary, wire_name
from mcp_actors.types import (
    CompletionReference,
    ContentBlock,
    ElicitParams,
    InputRequest,
    ResourceContents,
    SamplingContent,
)

__all__ = ["StructureError", "make_converter", "structure_error_text", "wire_name"]

_UNIONS = (ContentBlock, SamplingContent, CompletionReference, ElicitParams, InputRequest, ResourceContents)


def structure_error_text(error: BaseException) -> str:
    """One line about why structuring failed, fit to be sent to the peer whose input it was."""
    if isinstance(error, BaseValidationError):
        return "; ".join(transform_error(error))
    return str(error) or type(error).__name__


def make_converter(
    absent: Mapping[type, frozenset[str]] | None = None,
    downgrade: Mapping[type, Callable[[Any], Any]] | None = None,
) -> Converter:
    """A converter for one revision; without arguments, one that knows every member of every revision.

    ``absent`` has the attributes that the revision lacks, by class: they are not written, and members of that name
    that arrive are kept in ``extra`` like any other unknown member. ``downgrade`` has functions from an object to the
    one that is written instead, possibly of another class, or the same object when nothing needs to change. Both
    hold for subclasses too.
    """
    converter = Converter(detailed_validation=False)
    lacking = absent or {}
    instead = downgrade or {}
    write_any = writer_by_class(converter)

    def writer(cls: type) -> Hook:
        return class_writer(converter, cls, _lacked(lacking, cls), _downgrade_for(instead, cls), write_any)

    converter.register_structure_hook_factory(
        is_vocabulary, lambda cls: class_reader(converter, cls, _lacked(lacking, cls))
    )
    converter.register_structure_hook_factory(
        _UNIONS.__contains__, lambda union: cast(Hook, reader_of(converter, union))
    )
    converter.register_unstructure_hook_factory(is_vocabulary, writer)
    return converter


def _lacked(absent: Mapping[type, frozenset[str]], cls: type) -> frozenset[str]:
    return frozenset[str]().union(*(absent.get(each, ()) for each in cls.__mro__))


def _downgrade_for(downgrade: Mapping[type, Callable[[Any], Any]], cls: type) -> Callable[[Any], Any] | None:
    return next((downgrade[each] for each in cls.__mro__ if each in downgrade), None)
