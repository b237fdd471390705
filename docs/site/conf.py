# SPDX-License-Identifier: MIT
"""Sphinx's settings for the site, which tools/docs.py assembles and builds (make docs)."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

project = "Loam"
author = "the authors of Loam"
copyright = "the authors of Loam, MIT license"
_header = (ROOT / "include" / "loam.h").read_text()
release = ".".join(
    re.search(f"LOAM_VERSION_{part} (\\d+)", _header)[1] for part in ("MAJOR", "MINOR", "PATCH")
)

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
# Code without a language is a command or an equation.
highlight_language = "none"
# Docstrings alone are read: nothing has to be compiled or installed for them.
autodoc_mock_imports = ["loam_attn._core", "matplotlib", "numpy", "sklearn", "torch", "transformers"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
add_module_names = False
smartquotes = False

html_theme = "furo"
html_title = f"Loam {release}"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"


def _is_table(lines):
    return any(re.search(r"\S {2,}\S", line) for line in lines)


def _in_rst(text):
    """A paragraph of plain text: nothing in it is markup, but `names` and [shapes]."""
    text = re.sub(r"`([^`]+)`", r"\0\1\0", text)
    text = re.sub(r"(\[[A-Z0-9][A-Za-z0-9 ,+.]*\])", r"\0\1\0", text)
    out = []
    for i, part in enumerate(text.split("\0")):
        # Every other part is code, which wants a space around it, or a mark that stands for one.
        out.append(f"\\ ``{part}``\\ " if i % 2 else re.sub(r"([\\*_|`])", r"\\\1", part))
    return "".join(out)


def plain_text_to_rst(app, what, name, obj, options, lines):
    """Docstrings are plain text, with examples as doctest reads them, and tables by columns."""
    paragraphs, found = [[]], []
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    for paragraph in filter(None, paragraphs):
        if paragraph[0].lstrip().startswith(">>>"):
            found += paragraph
        elif _is_table(paragraph):
            found += ["::", "", *("    " + line for line in paragraph)]
        else:
            found += _in_rst("\n".join(paragraph)).split("\n")
        found.append("")
    lines[:] = found


def setup(app):
    app.connect("autodoc-process-docstring", plain_text_to_rst)
