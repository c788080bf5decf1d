"""How Sphinx builds these pages: offline, with warnings as errors (`make docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import cgstate  # noqa: E402  # the tree's own, installed or not

project = "cgstate"
author = "the cgstate authors"
copyright = author
version = release = cgstate.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "evidence", "diagrams/README.md"]
language = "en"
smartquotes = False  # it would make one dash of the two before an option

# Docstrings write names in single backticks: a link where this documentation has the name, plain code where not.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "cgstate"
html_static_path = ["_static"]
html_css_files = ["cgstate.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "monokai"
copybutton_prompt_text = "$ "
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, sans-serif", "font-stack--monospace": "ui-monospace, Menlo, monospace"},
}

_PICTURE = re.compile(
    r"<picture>\s*<source media=\"\(prefers-color-scheme: dark\)\" srcset=\"(?P<dark>[^\"]+)\">\s*"
    r"<img alt=\"(?P<alt>[^\"]*)\" src=\"(?P<light>[^\"]+)\">\s*</picture>"
)


PICTURE_SCALE = 0.72
"""Of a diagram on a page: its labels are as large as small print there, whichever diagram it is."""


def show_pictures(app: Sphinx, name: str, source: list[str]) -> None:
    """GitHub's way of having one picture for each scheme, as the theme's, whose switch may differ from the reader's system."""
    image = "```{{image}} {path}\n:alt: {alt}\n:class: only-{scheme} diagram\n:width: {width}px\n:target: {path}\n```\n"

    def one(path: str, alt: str, scheme: str) -> str:
        drawn = re.search(r'viewBox="0 0 (\d+) ', (Path(app.env.doc2path(name)).parent / path).read_text(encoding="utf-8"))
        assert drawn is not None, f"{path} is no diagram of ours"
        return image.format(path=path, alt=alt, scheme=scheme, width=round(int(drawn[1]) * PICTURE_SCALE))

    def both(found: re.Match[str]) -> str:
        return "\n".join(one(found[scheme], found["alt"], scheme) for scheme in ("light", "dark"))

    source[0] = _PICTURE.sub(both, source[0])


def make_room(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """No list of headings beside the picture of all machines, which would be cut off."""
    if name in ("index", "machines"):
        context["furo_hide_toc"] = True


def write_demo_trace(app: Sphinx, error: Exception | None) -> None:
    """A page that `cgstate trace show --html` makes, of a run on the simulator, for readers to try."""
    from cgstate.backends.sim import SimBackend
    from cgstate.demo import job
    from cgstate.demo.vocoder_sim import SimVocoder
    from cgstate.trace import Ring, html, read_lines

    if error is not None or app.builder.format != "html":
        return
    ring = Ring()
    job.run(SimVocoder(SimBackend(), 0), seed=0, requests=60, observer=ring)
    with (Path(app.outdir) / "demo-trace.html").open("w", encoding="utf-8") as file:
        html.write(lambda: read_lines(ring.lines()), "cgstate demo", file)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", show_pictures)
    app.connect("html-page-context", make_room, priority=900)  # after the theme's own
    app.connect("build-finished", write_demo_trace)
