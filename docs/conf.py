"""The documentation site: `make docs` writes it to out/docs. Warnings are errors."""

from importlib.metadata import version as installed

from docutils import nodes
from latex2mathml.converter import convert

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


def setup(app):
    """Formulas as MathML, which browsers draw themselves: the site needs no network and no script for them."""

    def inline(translator, node):
        translator.body.append(convert(node.astext()))
        raise nodes.SkipNode

    def block(translator, node):
        translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
        raise nodes.SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (block, None))
