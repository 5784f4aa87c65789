"""A word when kernels are compiled, and only then."""

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


def test_compiling_is_told_once():
    said = []
    with announce_compilation(said.append):
        compile_a_kernel()
    assert said == [MESSAGE]
    compile_a_kernel()  # nobody listens anymore
    assert said == [MESSAGE]


def test_kernels_of_others_are_their_matter():
    said = []
    with announce_compilation(said.append):
        compile_a_kernel(__name__)
    assert said == []


def test_of_two_who_listen_the_outer_speaks():
    outer, inner = [], []
    with announce_compilation(outer.append), announce_compilation(inner.append):
        compile_a_kernel()
    assert (outer, inner) == ([MESSAGE], [])


def test_kernels_that_are_loaded_are_not_told_of():
    cm.learn([[3, 1, 1], [1, 3, 2]], eps=0.5, tau=0.1)
    said = []
    with announce_compilation(said.append):
        cm.learn([[3, 1, 1], [1, 3, 2]], eps=0.5, tau=0.1)
    assert said == []


def test_a_bar_tells_on_standard_error(capfd):
    class Map:
        on_progress = None

    phi = Coupled(Map(), Map())
    for show in (False, True):
        with Bar(show) as bar, bar.stage(phi, Ahead(1e-6, 10)):
            compile_a_kernel()
        found = capfd.readouterr()
        assert (MESSAGE in found.err) == show
        assert found.out == ""
