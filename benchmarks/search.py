"""CPU seconds to find the ten nearest learned texts of new ones, beside LSA.

    python benchmarks/search.py --data folder

New items are other texts of the same data, and random sets of ten words. LSA is tf-idf and 100
singular vectors from scikit-learn, fitted once. The least of three repetitions.
"""

import argparse
import time
from pathlib import Path

import labeled
import numpy as np
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline

import cometric as cm

WORDS, NEW, NEIGHBORS = 10, 1000, 10


def seconds(search, new, repeats=3):
    """The least CPU time of a few calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        search(new)
        times.append(time.process_time() - start)
    return min(times)


def measure(X):
    """Seconds of the first call, of a later one, and of many short texts, for both methods."""
    known, text = X[:-1], X[[-1]]
    rng = np.random.default_rng(0)
    words = np.concatenate([rng.choice(X.shape[1], WORDS, replace=False) for _ in range(NEW)])
    ends = np.arange(0, WORDS * NEW + 1, WORDS)
    short = sparse.csr_array((np.ones(len(words)), words, ends), shape=(NEW, X.shape[1]))
    result = cm.learn(known, drop_empty=True)
    lsa = make_pipeline(TfidfTransformer(), TruncatedSVD(min(100, X.shape[1] - 1)))
    index = NearestNeighbors(metric="cosine").fit(lsa.fit_transform(known))
    searches = {
        "cometric": lambda new: result.search(new, NEIGHBORS),
        "LSA": lambda new: index.kneighbors(lsa.transform(new), NEIGHBORS),
    }
    for name, search in searches.items():
        first, later, many = seconds(search, text, 1), seconds(search, text), seconds(search, short)
        print(f"  {name:10} first {first:.3f}  later {later:.4f}  {NEW} short {many:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    folder = parser.parse_args().data
    for title, read in {"BBC News": labeled.SETS["bbc_news"], "M10 titles": labeled.titles}.items():
        data = read(folder)
        print(f"{title}: {data.X.shape[0]} x {data.X.shape[1]}")
        measure(sparse.csr_array(data.X))
