"""
Why are these two far apart?
============================

A transport distance comes with an explanation: the optimal plan, which shows how much mass moves
from where to where, and at what cost. The data are nine notes of a few words each. The words "cat"
and "kitten" occur with the same other words, which is enough to learn that they are close.
"""

import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer

import cometric as cm

notes = {
    "cat": "cat milk sleep mouse cat house",
    "kitten": "kitten milk sleep kitten house",
    "pets": "cat dog kitten puppy house",
    "dog": "dog bone bone run park dog house",
    "puppy": "puppy bone run park puppy",
    "stocks": "stock price rise bank stock",
    "bonds": "bond bank interest bond rise",
    "crash": "stock bond price price fall bank",
    "garden": "park sleep house rain",
}
counter = CountVectorizer()
X = pd.DataFrame(
    counter.fit_transform(notes.values()).toarray(),
    index=list(notes),
    columns=counter.get_feature_names_out(),
)
r = cm.learn(X, eps=0, tau=1e-2)

# %%
# Results keep the names of the data. Which words are nearest to "cat"?

print(pd.Series(r.features[list(X.columns).index("cat")], X.columns).sort_values().head(6))

# %%
# From the note on cats to the one on kittens, the common mass stays in place, and the rest
# moves a short distance. To the note on stocks all mass moves far. The explanation first lists
# the net changes, the words that one note has more of than the other, then the flows of mass.

print(r.explain("cat", "kitten"))
print()
print(r.explain("cat", "stocks"))

# %%
# The same as a plot: net changes, and flows as bands whose width is the mass and whose shade is the
# distance (darker is farther).

cm.plot.flows(r, "cat", "puppy")

# %%
# The distances between all nine notes, ordered by hierarchical clustering.

# sphinx_gallery_thumbnail_number = 1
cm.plot.distances(r)
