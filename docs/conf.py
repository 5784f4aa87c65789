"""How the site is built: ``make docs``."""

import os
import re
import shutil
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

# The examples are tiny: where other processes want the cores, threads would wait for each other.
for threads in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

import matplotlib  # noqa: E402

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE.parent / "src"))

import cometric  # noqa: E402

project = "cometric"
author = "The cometric developers"
copyright = "The cometric developers, MIT license"
release = version = cometric.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "markdown_pages",
    "native_math",
]
exclude_patterns = ["_build", "gallery", "**/GALLERY_HEADER.rst"]
default_role = "code"
templates_path = ["_templates"]
html_math_renderer = "mathml"

# The reference. Types are shown in signatures, as in the code. If torch is not installed, autodoc
# mocks it, and SciPy must be loaded before it is.
autodoc_mock_imports = [] if find_spec("torch") else ["torch"]
for name in ("estimator", "scverse.pl", "report"):
    import_module(f"cometric.{name}")
autodoc_member_order = "bysource"
autosummary_ignore_module_all = False
napoleon_google_docstring = False
python_maximum_signature_line_length = 88

# The gallery: every example runs when the site is built (not by `make pages`); a failure, or a
# warning about the data, fails the build.
RUN_EXAMPLES = os.environ.get("RUN_EXAMPLES", "1") != "0"
warnings.filterwarnings("error", message="`X`", category=UserWarning)
warnings.filterwarnings("error", category=cometric.ConvergenceWarning)
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
sphinx_gallery_conf = {
    "examples_dirs": ["gallery/use", "gallery/extend"],
    "gallery_dirs": ["examples", "extending"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": (),
    "plot_gallery": RUN_EXAMPLES,
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "min_reported_time": 1,
    "image_srcset": ["2x"],
    "thumbnail_size": (400, 280),
    "inspect_global_variables": False,
    "capture_repr": (),
}

html_theme = "furo"
html_title = f"cometric {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#2a5fb0",
        "color-brand-content": "#2a5fb0",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8db4f0",
        "color-brand-content": "#8db4f0",
    },
}


ARRAY = re.compile(r"ndarray\[tuple\[.*?\], [^\[]*dtype\[.*?\]\]")
CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")


def shorten(app, what, name, obj, options, signature, returns):
    """Write arrays as ``ndarray``, since docstrings give shape and type, and classes by name."""
    return tuple(
        text and CLASS.sub(r"\1", ARRAY.sub("ndarray", text)) for text in (signature, returns)
    )


def carry(app, failure):
    """Copy the reports written by examples to the site, unless examples were not run."""
    if failure is None and RUN_EXAMPLES and app.builder.format == "html":
        for name in ("report.html", "cells.html"):
            shutil.copy(HERE / "gallery" / "use" / name, app.outdir)


def setup(app):
    app.connect("autodoc-process-signature", shorten)
    app.connect("build-finished", carry)
