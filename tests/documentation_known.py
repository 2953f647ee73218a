"""The complaints of ``test_documentation.py`` that are known, by rule. It may only shrink."""

KNOWN: dict[str, frozenset[str]] = {
    "references_lead_to_what_exists": frozenset(),
    "public_callables_name_their_errors": frozenset(),
    "sections_are_well_formed": frozenset(),
    "docstrings_are_no_questions": frozenset(),
    "names_are_no_metaphors": frozenset(),
    "class_names_are_used_once": frozenset(),
    "classes_hold_little": frozenset(),
    "comparisons_of_eras": frozenset(),
}
