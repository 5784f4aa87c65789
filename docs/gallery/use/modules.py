"""
Modules of features
===================

A learned distance between features shows which of them belong together. :func:`cometric.modules`
turns it into modules, such as gene programs or word topics, and a background of features
that belong to none. The data are simulated counts of five cell types; a quarter of the
genes are markers of a type.
"""

import numpy as np

import cometric as cm

data = cm.datasets.simulate_counts(300, 200, types=5, density=0.3)
result = cm.learn(data.X)
found = cm.modules(result)
print(found)

# %%
# The modules are the markers of the types, and nearly all other genes are background.

marks = np.asarray(data.features)
for g, members in enumerate(found.members):
    types, counts = np.unique(marks[members], return_counts=True)
    print(g, {int(kind): int(count) for kind, count in zip(types, counts, strict=True)})
background = found.labels == -1
print(f"{(background & (marks == -1)).sum()} of {(marks == -1).sum()} other genes are background")

# %%
# Each sample has a score for each module; its mean in each group is a heat map.

cm.plot.modules(found, data.labels)

# %%
# Which known gene sets match which module? Sets can also be read from a GMT or JSON file.

sets = {f"markers of type {kind}": np.flatnonzero(marks == kind).astype(str) for kind in range(5)}
for row in found.enrichment(sets)[:5]:
    print(f"module {row.module}, {row.set}: {len(row.shared)} of {row.size}, q = {row.q:.1e}")

# %%
# Modules with high scores in the same samples can be merged.

print(found.merge(3))

# %%
# The other way around: the features nearest to each group of samples.

for row in cm.rank_features(result, data.labels, n_features=2):
    print(
        f"type {row.group}: gene {row.feature}, distance {row.distance:.3f}, {row.times:.1f} times"
    )
