"""
Short texts
===========

Titles, questions, tickets: with six words each, two texts on one subject often have no word in
common. Distances that compare word by word then see nothing, and the many singular vectors that
LSA needs for long texts are mostly noise. ``learn`` looks at such texts at several resolutions at
once, and moves mass between words with related uses: here both help (:doc:`/choosing`).
"""

import csv
import inspect
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer

import cometric as cm

# %%
# The texts
# ---------
# Titles of papers in ten fields (M10; Lim and Buntine, 2014), if the file is there. Otherwise the
# first line of the documentation of functions of NumPy and SciPy, in eight modules.

here = Path("../../../../shared/data/m10_titles.csv")
if here.exists():
    rows = list(csv.DictReader(here.open(encoding="utf-8")))
    corpus = [(row["text"], row["label"]) for row in rows]
else:
    names = ["linalg", "random", "fft", "polynomial"], ["signal", "stats", "special", "optimize"]
    corpus = [
        (inspect.getdoc(item).split("\n")[0], module)
        for library, modules in zip(("numpy", "scipy"), names, strict=True)
        for module in modules
        for name, item in vars(import_module(f"{library}.{module}")).items()
        if callable(item) and not name.startswith("_") and inspect.getdoc(item)
    ]
chosen = np.random.default_rng(0).permutation(len(corpus))[:1500]
texts, fields = map(np.array, zip(*(corpus[k] for k in chosen), strict=True))

vectorizer = CountVectorizer(min_df=3, token_pattern=r"\b[a-z]{2,}\b")
counts = vectorizer.fit_transform(texts)
full = np.diff(counts.indptr) >= 2  # texts with at least two known words
counts, texts, fields = counts[full], texts[full], fields[full]
X = pd.DataFrame.sparse.from_spmatrix(counts, columns=vectorizer.get_feature_names_out())
X = X.loc[:, (counts > 0).sum(axis=0).A1 > 0]
print(f"{X.shape[0]} texts, {X.shape[1]} words, {np.diff(counts.indptr).mean():.1f} in each")

# %%
# Both distances
# --------------
# The line of options says what was chosen for these data: the fewer words two texts share, the
# larger the share of transport.

result = cm.learn(X, drop_empty=True)
print(result)

# %%
# Words
# -----

for word in list(X.columns[np.argsort(-(counts > 0).sum(axis=0).A1)][20:100:12]):
    print(f"{word:14}", ", ".join(name for name, _ in result.nearest(word, k=6)))

# %%
# Neighbors, beside simple distances
# ----------------------------------
# How often the ten nearest texts agree with a text on its field, which nothing has seen.

from cometric import baselines, scores  # noqa: E402

distances = {
    "learned": result.samples,
    "reference alone": baselines.reference(counts),
    "tf-idf cosine": baselines.tfidf(counts),
    "LSA 100": baselines.lsa(counts, 100),
    "LSA 30": baselines.lsa(counts, 30),
    "CA 100": baselines.correspondence(counts, 100),
}
for name, D in distances.items():
    print(f"{name:16} {scores.knn_accuracy(D, fields, 10):.3f}")

# %%
# A map, and new texts
# --------------------

cm.plot.embedding(result, method="tsne", labels=fields)

# %%

questions = ["a support vector machine for text", "price and demand in a market"]
new = pd.DataFrame.sparse.from_spmatrix(
    vectorizer.transform(questions), columns=vectorizer.get_feature_names_out()
)
known = new.columns.isin(X.columns)
for question, row in zip(questions, result.transform(new.loc[:, known]), strict=True):
    print(f"{question}\n   " + "\n   ".join(texts[np.argsort(row)[:4]]))
