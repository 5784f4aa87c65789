"""
Why are these two far apart?
============================

A transport distance comes with its reason: a plan that says which mass goes where, and what that
costs. Here are nine notes of a few words each. The words "cat" and "kitten" keep the same company,
and that is enough to learn that they are close.
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
# Names come along with the data. Which words are near "cat", though no one defined them?

print(pd.Series(r.features[list(X.columns).index("cat")], X.columns).sort_values().head(6))

# %%
# From the note on cats to the one on kittens: what they share stays where it is, and the rest has a
# short way. To the note on stocks everything moves, and all of it far. First come the words that
# one note has more of than the other, then the flows of mass between them.

print(r.explain("cat", "kitten"))
print()
print(r.explain("cat", "stocks"))

# %%
# The same as a picture: net changes, and bands as wide as the mass they carry; the darker, the
# farther it goes.

cm.plot.flows(r, "cat", "puppy")

# %%
# And all nine notes, in the order of a clustering.

# sphinx_gallery_thumbnail_number = 1
cm.plot.distances(r)
