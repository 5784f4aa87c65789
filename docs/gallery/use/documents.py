"""
Documents and words
===================

From raw texts to a distance between documents and one between *words*: counts with scikit-learn,
nearest words, a map of the documents, topics, and new documents. The texts are the documentation of
NumPy and SciPy, one document per function, so nothing has to be downloaded. The module of a
function serves as its label; no distance uses it.
"""

import inspect
from importlib import import_module

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.decomposition import NMF, TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize

import cometric as cm

MODULES = (
    "numpy.linalg",
    "numpy.random",
    "scipy.interpolate",
    "scipy.ndimage",
    "scipy.optimize",
    "scipy.signal",
    "scipy.special",
    "scipy.stats",
)


def documents(module, most=60):
    """The texts of some functions of a module by name, without their examples."""
    texts = {}
    for name, item in vars(import_module(module)).items():
        text = (inspect.getdoc(item) or "").split("\nExamples\n---")[0]
        if callable(item) and not name.startswith("_") and len(text.split()) > 60:
            texts[f"{module.split('.')[1]}.{name}"] = text
    chosen = np.random.default_rng(0).permutation(sorted(texts))[:most]
    return [(name, texts[name], module) for name in chosen]


corpus = pd.DataFrame(
    [row for module in MODULES for row in documents(module)], columns=["name", "text", "module"]
).drop_duplicates("text")
held = np.random.default_rng(1).random(len(corpus)) < 0.2  # to be placed later
known, new = corpus[~held], corpus[held]
print(known.groupby("module").size().to_string())

# %%
# From texts to counts
# --------------------
# Every word is a feature. Words in more than a quarter of the documents are left out, since they
# say little, and so are words in fewer than eight, which have too little data. Nothing is weighted
# or stemmed. Of words with proportional counts, and of such documents, only the first is used.

vectorizer = CountVectorizer(
    stop_words="english", token_pattern=r"\b[a-z]{3,}\b", min_df=8, max_df=0.25
)
counts = vectorizer.fit_transform(known["text"]).toarray()


def distinct(counts):
    """The numbers of the rows that are not empty, nor multiples of earlier ones."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    first = np.unique(shares.round(9), axis=0, return_index=True)[1]
    return np.sort(first[counts[first].any(axis=1)])


words = distinct(counts.T)
known = known.iloc[distinct(counts[:, words])]
vocabulary = vectorizer.get_feature_names_out()[words]


def table(texts, names):
    """Counts of the learned words, with names, which results and ``transform`` use."""
    return pd.DataFrame(vectorizer.transform(texts).toarray()[:, words], names, vocabulary)


X = table(known["text"], known["name"])
print(f"{X.shape[0]} documents, {X.shape[1]} words, {(X > 0).sum(axis=1).mean():.0f} in each")

# %%
# Both distances
# --------------

result = cm.learn(X)
print(result)

# %%
# Nearest words
# -------------
# Two words are close if they appear in documents that are close to one another; they need not
# appear in the same documents.

for word in ("filter", "hypothesis", "matrix", "minimize", "polynomial", "probability", "spline"):
    if word in X:  # in the versions of NumPy and SciPy that are installed
        print(f"{word:12}", ", ".join(name for name, _ in result.nearest(word, k=7)))

# %%
cm.plot.nearest(result, "spline")

# %%
# A map of the documents
# ----------------------

cm.plot.embedding(result, method="tsne", labels=known["module"])

# %%
# Topics
# ------
# Modules of words near one another; the most correlated ones are merged until 8 remain. Words that
# are evenly spread over the documents belong to no module ("background"). The score of a module in
# a document says how much more of its words the document has than others; the table shows the mean
# over the functions of each module of NumPy and SciPy.

topics = cm.modules(result).merge(8)
print(topics)
print(topics.table([name.split(".")[1] for name in known["module"]]))

# %%
cm.plot.embedding(result, "features", "tsne", color=topics)

# %%
# The topic of a document is the one with the largest score.

largest = topics.scores().argmax(axis=1)
for number, name in enumerate(topics.names):
    modules = known["module"][largest == number].value_counts()
    most = ", ".join(f"{count} in {module}" for module, count in modules.head(3).items())
    print(f"{number}  {name}: {most}")

# %%
# New documents
# -------------
# ``transform`` computes their distances to the known ones. ``transfer_labels`` gives each the
# module that its 15 nearest documents vote for, and the probability that it is right, estimated
# from the known documents.

new = new[table(new["text"], new["name"]).any(axis=1).to_numpy()]
across = result.transform(table(new["text"], new["name"]))
answer = cm.transfer_labels(across, known["module"], within=result.samples)
right, sure = answer.labels == new["module"], answer.confidence > 0.95
print(f"{right.mean():.3f} of {len(new)} held-out documents get the right module,")
print(f"{right[sure].mean():.3f} of the {sure.sum()} with a confidence above 0.95")

# %%
# Any text will do that has some of the words.

questions = [
    "How do I find the root of an equation with Newton's method and a given tolerance?",
    "Decompose a symmetric matrix: eigenvalues, singular values, and the rank of the matrix.",
    "Test the null hypothesis that two samples come from populations of equal variance.",
]
for question, row in zip(questions, result.transform(table(questions, None)), strict=True):
    print(f"{question}\n   {', '.join(X.index[np.argsort(row)[:4]])}")

# %%
# Comparison with LSA and NMF
# ---------------------------
# The same vote, and clusters of the documents by the graph of their 15 nearest neighbors, from the
# learned distances and from others: LSA (tf-idf and truncated SVD, 10 to 100 components) and NMF
# (of tf-idf, 8 topics). *Usual clusters* are the largest topic for the learned distances and for
# NMF, and k-means for LSA. Clusters are compared with the modules by the adjusted Rand index.
# *Plurals* is how often, for a word such as *filter*, its plural is one of the 10 nearest words,
# and vice versa. Higher scores are better.


def clusters(distances, count=8, k=15):
    """Spectral clusters of the graph of the k nearest neighbors."""
    graph = np.full(distances.shape, 1e-6)  # connected, if only just
    np.put_along_axis(graph, cm.scores.neighbors(distances, k), 0.5, axis=1)
    model = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr")
    return model.fit_predict(graph + graph.T)


number = {word: k for k, word in enumerate(vocabulary)}
pairs = [(number[word], number[f"{word}s"]) for word in number if f"{word}s" in number]


def scores(within, across, between, usual):
    """One row of the table."""
    vote = cm.transfer_labels(across, known["module"], within=within)
    close = cm.scores.neighbors(between, 10)
    return {
        "held-out accuracy": (vote.labels == new["module"]).mean(),
        "clusters": adjusted_rand_score(known["module"], clusters(within)),
        "usual clusters": adjusted_rand_score(known["module"], usual),
        "plurals": np.mean([b in close[a] for p in pairs for a, b in (p, p[::-1])]),
    }


tfidf = TfidfTransformer(sublinear_tf=True)
weighted = tfidf.fit_transform(X)
weighted_new = tfidf.transform(table(new["text"], new["name"]))
rows = {"learned": scores(result.samples, across, result.features, largest)}
for model in (
    *(TruncatedSVD(count, random_state=0) for count in (10, 30, 100)),
    NMF(8, init="nndsvda", max_iter=500, random_state=0),
):
    parts = model.fit_transform(weighted)
    vectors, others = normalize(parts), normalize(model.transform(weighted_new))
    loadings = normalize(model.components_.T)
    if isinstance(model, NMF):
        name, usual = "NMF 8", parts.argmax(axis=1)
    else:
        name = f"LSA {model.n_components}"
        usual = KMeans(8, n_init=10, random_state=0).fit_predict(vectors)
    distances = [cdist(a, b) for a, b in ((vectors,) * 2, (others, vectors), (loadings,) * 2)]
    rows[name] = scores(*distances, usual)
print(pd.DataFrame(rows).T.to_string(float_format="{:.3f}".format))
print(f"{len(new)} held-out documents, {len(pairs)} pairs of words")

# %%
# One held-out document is 0.01: documents are placed about as well as by the best LSA. Nearest
# words are better than those of any number of components, and no number had to be chosen. For
# clusters, LSA with few components is simpler and as good or better. Results for other collections
# (BBC news, Classic3, CSTR) are similar: see :doc:`/usefulness`.
