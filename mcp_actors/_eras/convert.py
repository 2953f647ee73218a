"""Makes the cattrs converter of each revision, from JSON to the classes of `mcp_actors.types` and back.

General layout: `make_converter` registers two hook factories for the classes and one for their unions. cattrs calls
them when a class is used for the first time and keeps their hooks, so that making a converter is cheap. The hooks use
tables made from the attrs fields: the cost of reading depends on the members of the message, that of writing on the
fields of the class. The hooks of nested classes are looked up in the converter again, so that a hook registered there
for one class applies everywhere.

A value typed ``Any``, or a dict or list of such values, is passed on without being copied or checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from cattrs import BaseConverter, transform_error
from cattrs.errors import BaseValidationError

from mcp_actors._eras.structure import StructureError, class_reader, reader_of
from mcp_actors._eras.unstructure import class_writer, writer_by_class
from mcp_actors._eras.vocabulary import Hook, is_union, is_vocabulary, rows_of, wire_name

__all__ = ["StructureError", "make_converter", "structure_error_text", "wire_name"]


def structure_error_text(error: BaseException) -> str:
    """Returns one line on why structuring failed, which may be sent to the peer."""
    if isinstance(error, BaseValidationError):
        return "; ".join(transform_error(error))
    return str(error) or type(error).__name__


def make_converter(
    absent: Mapping[str, frozenset[str]] | None = None,
    downgrade: Mapping[str, Callable[[Any], Any]] | None = None,
) -> BaseConverter:
    """Returns a converter for one revision; without arguments, one that has every member of every revision.

    Both arguments apply to subclasses too.

    Args:
        absent: the attributes that the revision does not have, by the name of their class. They are not written, and
            received members of that name are kept in ``extra`` like any other unknown member.
        downgrade: functions, by such names too, that return the object that is written instead of their argument,
            possibly of another class, or the argument itself if nothing needs to change.
    """
    converter = BaseConverter(detailed_validation=False)
    absent_by_class = absent or {}
    downgrade_by_class = downgrade or {}
    write_any = writer_by_class(converter)

    def absent_for(cls: type) -> frozenset[str]:
        return frozenset[str]().union(*rows_of(absent_by_class, cls))

    def writer(cls: type) -> Hook:
        return class_writer(
            converter,
            cls,
            absent_for(cls),
            next(iter(rows_of(downgrade_by_class, cls)), None),
            write_any,
        )

    converter.register_structure_hook_factory(
        is_vocabulary, lambda cls: class_reader(converter, cls, absent_for(cls))
    )
    converter.register_structure_hook_factory(is_union, lambda union: cast(Hook, reader_of(converter, union)))
    converter.register_unstructure_hook_factory(is_vocabulary, writer)
    return converter
