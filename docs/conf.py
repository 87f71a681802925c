"""The documentation site: `make docs` writes it to out/docs. Warnings are errors."""

from importlib.metadata import version as installed

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

project = "GraphMask"
author = "the GraphMask authors"
version = release = installed("graphmask")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # the docstrings' "Args:"
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "GraphMask"
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_custom_sections = [("Args of the call", "params_style"), ("Columns", "params_style")]

html_math_renderer = "mathml"


def mathml(node, display):
    """The formula as MathML. A command that the converter does not know is a warning, so that `make docs` fails."""
    made = convert(node.astext(), display=display)
    if "\\" in made:
        logging.getLogger(__name__).warning("unknown command in a formula: %s", node.astext(), location=node)
    return made


def setup(app):
    """Formulas as MathML, which browsers draw themselves: the site needs no network and no script for them."""

    def inline(translator, node):
        translator.body.append(mathml(node, "inline"))
        raise nodes.SkipNode

    def block(translator, node):
        translator.body.append(f'<div class="math">{mathml(node, "block")}</div>')
        raise nodes.SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (block, None))
