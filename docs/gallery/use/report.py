"""
An interactive report
=====================

One self-contained HTML file: a map of the samples next to a map of the features. Select a group in
one of them, and the other highlights where its mass lies.
"""

from pathlib import Path

import cometric as cm

cells = cm.datasets.simulate_counts(n=120, m=80, types=4, density=0.2, random_state=0)
r = cm.learn(cells.X, eps=0.1, tau=1e-2, tol=1e-3)

# %%
cm.report.write(
    r,
    Path("report.html"),
    labels=[f"type {label}" for label in cells.labels],
    feature_names=[
        f"gene {k}" if kind < 0 else f"marker {k} of type {kind}"
        for k, kind in enumerate(cells.features)
    ],
    title="Simulated cells",
    certificate=r.certify(),
    force=True,
)

# %%
# .. raw:: html
#
#    <p><a href="../report.html"><strong>Open the report</strong></a>. Its first map:</p>

cm.plot.embedding(r, method="tsne", labels=[f"type {label}" for label in cells.labels])
