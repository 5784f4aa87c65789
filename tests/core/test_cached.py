"""A property that is computed once does not make other objects wait, in any version of Python."""

import threading

from cometric.core.cached import cached_property


class Slow:
    def __init__(self, value, ready):
        self.value, self.ready, self.calls = value, ready, 0

    @cached_property
    def doubled(self):
        """Twice the value."""
        self.calls += 1
        self.ready.wait(20.0)
        return 2 * self.value


def test_it_is_computed_once():
    slow = Slow(3, threading.Event())
    slow.ready.set()
    assert (slow.doubled, slow.doubled, slow.calls) == (6, 6, 1)
    assert Slow.doubled.__doc__ == "Twice the value."


def test_other_objects_do_not_wait():
    first, second = (Slow(k, threading.Event()) for k in range(2))
    second.ready.set()
    busy = threading.Thread(target=lambda: first.doubled)
    busy.start()
    quick = threading.Thread(target=lambda: second.doubled)
    quick.start()
    quick.join(5.0)
    assert not quick.is_alive()
    first.ready.set()
    busy.join()
