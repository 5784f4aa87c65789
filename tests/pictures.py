"""Pictures of all plots, small and without text, and their comparison with saved ones.

``python tests/pictures.py`` writes them anew into ``tests/drawing/pictures``: look at each before
you commit it. Fonts and small changes of Matplotlib move lines by a pixel, so pictures are made
without text, in axes of fixed place, and compared by the mean colors of blocks of 4 x 4 pixels,
shifted by a pixel if need be, with a tolerance that a missing or recolored part of a plot exceeds.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.text import Text

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import cometric as cm
from cometric import plot
from cometric.results.modules import ModuleTable

FOLDER = Path(__file__).parent / "drawing" / "pictures"
MAJOR = 3
"""The version of Matplotlib that made the pictures."""

BLOCK = 4
TOLERANCE = 4.0
"""Largest root of the mean squared difference of blocks, of 255."""


def make_result():
    """Three groups of samples and of features, with named features; distances in closed form."""
    data = cm.datasets.simulate_counts(60, 40, types=3, density=0.5, random_state=1)
    names = [f"gene {k}" for k in range(40)]
    named = Table(data.X, [f"cell {i}" for i in range(60)], names)
    return cm.learn(named, eps=np.inf, tau=0.1, norm="l1"), data.labels


class Table:
    """A matrix with names, as ``learn`` reads it."""

    def __init__(self, X, obs_names, var_names):
        self.X, self.obs_names, self.var_names = X, obs_names, var_names


def positions(distances, *_):
    """In place of t-SNE, which may differ between versions: a spiral."""
    turn = np.arange(len(distances))
    return np.column_stack([np.cos(turn), np.sin(turn)]) * np.sqrt(1.0 + turn)[:, None]


def drawings(result, labels):
    """Each picture by name: a function that draws on given axes."""
    kinds = np.array([f"kind {label}" for label in labels])
    values = np.linspace(0.0, 1.0, len(kinds)) ** 4
    scores = np.array([[1.0, -0.5, 0.2], [-0.8, 0.9, 0.1], [0.0, -0.2, 0.7]])
    table = ModuleTable(("a", "b", "c"), ("x", "y", "z"), scores)
    rows = [
        SimpleNamespace(name=name, learned=name < "c", loss=loss, difference_error=0.01)
        for name, loss in (("a", 0.3), ("c", 0.34), ("b", 0.4), ("d", 0.45))
    ]
    choice = SimpleNamespace(table=rows, first="c")
    tree = cm.learn(cm.datasets.torus("unimodal", 12, 10), transport=cm.Tree(), tau=0)
    halves = np.where(np.arange(40) < 30, "one", "background")
    return {
        "choice": lambda ax: plot.choice(choice, ax),
        "changes": lambda ax: plot.changes(result, 0, 1, 5, ax=ax),
        "convergence": lambda ax: plot.convergence(result, ax),
        "distances": lambda ax: plot.distances(result, labels=kinds, ax=ax),
        "distances_features": lambda ax: plot.distances(result, "features", ax=ax),
        "embedding": lambda ax: plot.embedding(result, method="tsne", ax=ax),
        "embedding_feature": lambda ax: plot.embedding(
            result, method="tsne", color="gene 0", ax=ax
        ),
        "embedding_features": lambda ax: plot.embedding(
            result, "features", "tsne", color=halves, ax=ax
        ),
        "embedding_labels": lambda ax: plot.embedding(result, method="tsne", labels=kinds, ax=ax),
        "embedding_numbers": lambda ax: plot.embedding(result, method="tsne", color=values, ax=ax),
        "flows": lambda ax: plot.flows(result, 0, 1, 6, ax=ax),
        "modules": lambda ax: plot.modules(table, ax=ax),
        "nearest": lambda ax: plot.nearest(result, "gene 0", 6, ax=ax),
        "tree": lambda ax: plot.tree(tree, ax, of="features"),
    }


def picture(draw):
    """The pixels (height, width, 3) of one plot, without text."""
    with mpl.style.context("default"):
        figure = plt.figure(figsize=(4.0, 3.0), dpi=60)
        ax = figure.add_axes((0.1, 0.1, 0.6, 0.8))
        draw(ax)
        for text in figure.findobj(Text):
            text.set_visible(False)
        figure.canvas.draw()
        pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
        plt.close(figure)
    return pixels


def difference(one, other):
    """Root of the mean squared difference of blocks; infinite if the sizes differ.

    The smallest for shifts by at most one pixel in each direction.
    """
    if one.shape != other.shape:
        return np.inf
    still = blocks(one)
    shifted = (np.roll(other, (up - 1, right - 1), (0, 1)) for up, right in np.ndindex(3, 3))
    return min(float(np.sqrt(np.mean((still - blocks(image)) ** 2))) for image in shifted)


def blocks(image):
    """The mean color of each block of pixels."""
    high, wide = (size // BLOCK for size in image.shape[:2])
    whole = image[: high * BLOCK, : wide * BLOCK].astype(float)
    return whole.reshape(high, BLOCK, wide, BLOCK, 3).mean(axis=(1, 3))


def saved(name):
    """The picture in the folder."""
    image = plt.imread(FOLDER / f"{name}.png")
    return np.round(image[..., :3] * 255).astype(np.uint8)


def main():
    plot.coordinates = positions
    for name, draw in drawings(*make_result()).items():
        plt.imsave(FOLDER / f"{name}.png", picture(draw))
        print(FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
