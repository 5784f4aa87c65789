"""A message when kernels are compiled, and only then."""

from numba import njit

import cometric as cm
from cometric.core.types import Coupled
from cometric.kernels.compiling import MESSAGE, announce_compilation
from cometric.machine.progress import Ahead, Bar


def compile_a_kernel(module="cometric.kernels.new"):
    kernel = njit(lambda x: x + 1)
    kernel.py_func.__module__ = module
    assert kernel(1) == 2
    assert kernel(1.5) == 2.5  # compiled again, for another type


def test_compilation_is_announced_once():
    said = []
    with announce_compilation(said.append):
        compile_a_kernel()
    assert said == [MESSAGE]
    compile_a_kernel()  # the listener is removed
    assert said == [MESSAGE]


def test_kernels_of_other_packages_are_not_announced():
    said = []
    with announce_compilation(said.append):
        compile_a_kernel(__name__)
    assert said == []


def test_only_the_outermost_context_announces():
    outer, inner = [], []
    with announce_compilation(outer.append), announce_compilation(inner.append):
        compile_a_kernel()
    assert (outer, inner) == ([MESSAGE], [])


def test_kernels_loaded_from_the_cache_are_not_announced():
    cm.learn([[3, 1, 1], [1, 3, 2]], eps=0.5, tau=0.1)
    said = []
    with announce_compilation(said.append):
        cm.learn([[3, 1, 1], [1, 3, 2]], eps=0.5, tau=0.1)
    assert said == []


def test_a_bar_announces_on_standard_error(capfd):
    class Map:
        on_progress = None

    phi = Coupled(Map(), Map())
    for show in (False, True):
        with Bar.shown(show) as bar, bar.stage(phi, Ahead(1e-6, 10)):
            compile_a_kernel()
        output = capfd.readouterr()
        assert (MESSAGE in output.err) == show
        assert output.out == ""
