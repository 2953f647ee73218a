"""The site that is made of these pages and of the docstrings: ``sphinx-build -W --keep-going docs build/site``.

It is strict: a link that leads nowhere, a page that the navigation does not have, or a public name without a docstring
fails the build. Nothing that the site shows is fetched from elsewhere, and its search works from a folder of files.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "mcp-actors"
author = "the authors of mcp-actors"
copyright = author
version = release = version_of(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference",  # these are in _site/
    "source_links",
    "llms",
]
exclude_patterns = ["_site"]
root_doc = "index"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# The names in the docstrings are between single backticks, and most of them are names of this project.
default_role = "py:obj"
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = False
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# A program is copied as it is, and of a terminal only what a person types.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"mcp-actors {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
highlight_language = "text"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7cb7ff", "color-brand-content": "#7cb7ff"},
}

# A notebook's cells are Python with lines that only IPython has.
suppress_warnings = ["misc.highlighting_failure"]
