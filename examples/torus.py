"""Learn distances between translations of a curve on a circle.

This is the first experiment of the paper: three curves, 100 samples, 80 features, exact
transport. Run it with ``make torus``; it prints a summary and plots ``demo/torus.png``.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from tqdm import tqdm

import cometric as cm

TEMPLATES = {
    "unimodal": ("one bump", "#2a5fb0"),
    "bimodal": ("two bumps", "#d9731a"),
    "asymmetric": ("steep, then slow", "#3d8544"),
}
TAUS = (0.001, 0.01, 0.1, 1.0)
FIGURE = Path(__file__).parents[1] / "demo" / "torus.png"


def main() -> None:
    print(
        "Data: a curve on a circle, translated a little further for each of 100 samples (rows),\n"
        "evaluated at 80 points of the circle, the features (columns). Three curves, three data\n"
        "sets. cometric does not know that there is a circle, or which columns are neighbors.\n"
    )
    print("Compiling, once (about a minute; later runs use a cache) ... ", end="", flush=True)
    print(f"{cm.warmup(['exact']):.1f} s\n")

    data = {name: cm.datasets.torus(name, n=100, m=80) for name in TEMPLATES}
    runs = [(name, tau, "auto") for name in TEMPLATES for tau in TAUS]
    runs += [(name, 0.1, "power") for name in TEMPLATES]  # to plot its convergence
    learned = {}
    for name, tau, solver in tqdm(runs, desc="learning"):
        tol = 1e-10 if tau == 0.1 else 1e-4  # the other values of tau are only plotted
        learned[name, tau, solver] = cm.learn(data[name], eps=0, tau=tau, tol=tol, solver=solver)

    for name, (words, _) in TEMPLATES.items():
        print(f"\n{name} ({words})\n{learned[name, 0.1, 'auto']}")
        power = learned[name, 0.1, "power"]
        apart = cm.hilbert_distance(power.samples, learned[name, 0.1, "auto"].samples)
        print(
            f"  plain power      {len(power.history)} iterations, "
            f"{power.history[-1].seconds:.2f} s, Hilbert distance to the above {apart:.0e}"
        )
    tell({name: learned[name, 0.1, "auto"].samples[0] for name in TEMPLATES})
    draw(data, learned)
    print(f"\nThe figure is in {FIGURE.parent.name}/{FIGURE.name}.")


def tell(distances: dict) -> None:
    """Print the distance of each curve to its translations."""
    turns = np.arange(1, 11) / 20
    print("\nDistance of a curve to itself after a fraction of a turn (tau = 0.1, maximum 1):")
    print(f"  {'turn':12}" + "".join(f"{t:6.2f}" for t in turns))
    for name, distance in distances.items():
        print(f"  {name:12}" + "".join(f"{distance[round(t * 100)]:6.2f}" for t in turns))
    print(f"  {'sin(pi turn)':12}" + "".join(f"{v:6.2f}" for v in np.sin(np.pi * turns)) + "\n")
    for name, distance in distances.items():
        top = distance[:51].argmax()
        if top >= 49:
            print(f"  {name}: grows up to half a turn, as on a circle.")
        else:
            print(
                f"  {name}: largest at {top / 100:.2f} of a turn, then smaller: half a turn moves "
                "each\n    bump close to the position of the other, so opposite points look alike."
            )


def draw(data: dict, learned: dict) -> None:
    """Plot a row per curve: the curve, the data, the metric, the effect of tau, convergence."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(3, 5, figsize=(16.5, 9.5), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    figure.suptitle("Distances learned from translations of a curve on a circle", fontsize=16)
    titles = (
        "The curve",
        "Data: 100 translations",
        "Feature distance, τ = 0.1",
        "Its first row, by τ",
        "Power iteration, τ = 0.1",
    )
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title, fontweight="bold", fontsize=12, pad=12)

    for row, (name, (words, color)) in zip(panels, TEMPLATES.items(), strict=True):
        curve, matrix, metric, taus, convergence = row
        shades = LinearSegmentedColormap.from_list(name, ["white", color, "black"])
        ticks = {"xticks": range(0, 80, 20), "xlabel": "feature"}

        turn = np.linspace(-0.5, 0.5, 501)
        height = cm.datasets.torus(name, n=500, m=1)[np.arange(501) - 250, 0]
        curve.fill_between(turn, height, color=color, alpha=0.2, lw=0)
        curve.plot(turn, height, color=color, lw=2)
        curve.set(xlim=(-0.5, 0.5), ylim=(0, None), yticks=[], xlabel="fraction of a turn")
        curve.set_ylabel(f"{name}\n{words}", color=color, fontweight="bold", labelpad=10)

        matrix.imshow(data[name], cmap=shades, vmax=1.5 * data[name].max(), aspect="auto")
        matrix.set(ylabel="sample", yticks=range(0, 100, 20), **ticks)

        image = metric.imshow(learned[name, 0.1, "auto"].features, cmap=shades, vmax=1.35)
        metric.set(ylabel="feature", yticks=range(0, 80, 20), **ticks)
        bar = figure.colorbar(image, ax=metric, shrink=0.6, ticks=[0, 0.25, 0.5, 0.75, 1])
        bar.ax.set_ylim(0, 1)
        bar.outline.set_visible(False)

        for tau, shade, width in zip(TAUS, (0.85, 0.6, 0.4, 0.2), (1.2, 2, 3.5, 6), strict=True):
            around = np.append(learned[name, tau, "auto"].features[0], 0.0)  # close the circle
            # Wide light lines below thin dark ones, so that coinciding curves are all visible.
            taus.plot(around, color=shades(shade), lw=width, zorder=3 - tau)
            taus.plot([], color=str(1 - shade), lw=width, label=f"τ = {tau:g}")
        taus.set(xlim=(0, 80), ylim=(0, 1.05), ylabel="distance from feature 0", **ticks)

        for other, (_, shade) in TEMPLATES.items():
            residuals = [line.residual for line in learned[other, 0.1, "power"].history]
            style = {"color": shade, "lw": 1.5, "marker": "o", "ms": 4, "zorder": 3}
            style = style if other == name else {"color": "0.82", "lw": 1.5}
            convergence.semilogy(np.arange(1, len(residuals) + 1), residuals, **style)
        convergence.set(xlabel="iteration", ylabel="residual (Hilbert metric)", xlim=(0, None))
    panels[0, 3].legend(frameon=False, loc="lower center")

    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)


if __name__ == "__main__":
    main()
