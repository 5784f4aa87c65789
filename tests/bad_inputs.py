"""Bad inputs for ``learn``, each with the exception and the words it must raise.

A table rather than tests, so that it can be run under ``python -O`` too, where no assertion helps.
"""

import numpy as np
from scipy import sparse

import cometric as cm

X = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, 1.0], [0.5, 1.0, 4.0], [1.0, 5.0, 2.0]])
A, B = X / X.sum(axis=1, keepdims=True), X.T / X.T.sum(axis=1, keepdims=True)
KINDS = {
    "array": np.asarray,
    "fortran": np.asfortranarray,
    "list": lambda matrix: matrix.tolist(),
    "csr": sparse.csr_array,
    "csc": sparse.csc_matrix,
    "coo": sparse.coo_array,
}
SPOTS = [(0, 0), (1, 2), (3, 1), (2, 0)]
ENTRIES = [
    (np.nan, "NaN entry", "Replace them"),
    (np.inf, "infinite entry", "Replace them by finite values"),
    (-np.inf, "infinite entry", "Replace them by finite values"),
    (-1.0, "negative entry", "Pass counts, or their logarithms"),
    (-1e-300, "negative entry", "Pass counts, or their logarithms"),
]
NOT_NUMBERS = ["0.1", None, 1j, [0.1], np.ones(2), object, True, {}]


def changed(matrix, where, value):
    matrix = np.array(matrix, dtype=float)
    matrix[where] = value
    return matrix


def entries():
    for kind, make in KINDS.items():
        for spot in SPOTS:
            for value, what, cure in ENTRIES:
                words = rf"`X` has 1 {what} \(first: row {spot[0]}, column {spot[1]}\). {cure}"
                yield f"{value} at {spot}, {kind}", {"X": make(changed(X, spot, value))}, words


def empties():
    for kind, make in KINDS.items():
        for row in range(4):
            words = rf"`X` has 1 empty row \(first: {row}\). Pass `drop_empty=True` to leave"
            yield f"empty row {row}, {kind}", {"X": make(changed(X, row, 0.0))}, words
        for column in range(3):
            words = rf"`X` has 1 empty column \(first: {column}\). Pass `drop_empty=True`"
            where = (slice(None), column)
            yield f"empty column {column}, {kind}", {"X": make(changed(X, where, 0.0))}, words


def shapes():
    for n, m in [(0, 0), (0, 1), (1, 0), (0, 3), (3, 0), (1, 1), (1, 2), (2, 1), (1, 9), (9, 1)]:
        for kind in ("array", "csr", "coo"):
            words = rf"`X` has shape \({n}, {m}\); need at least 2 rows and 2 columns"
            yield f"{n} x {m}, {kind}", {"X": KINDS[kind](np.ones((n, m)))}, words
    for data in (None, "x.csv", {}):
        kind = type(data).__name__
        yield f"a {kind}", {"X": data}, f"`X` is a {kind}, which cannot be read as a matrix"
    for data, count in [(3.0, "0 dimensions"), ([], "1 dimension;"), (np.ones(5), "1 dimension;"),
                        (np.ones((2, 2, 2)), "3 dimensions")]:  # fmt: skip
        yield f"{count} of {type(data).__name__}", {"X": data}, f"`X` has {count}"
    for dtype in (complex, object, str, bytes, "timedelta64[s]", "datetime64[s]"):
        yield f"dtype {dtype}", {"X": X.astype(int).astype(dtype)}, "`X` has dtype .*; pass real"
    yield "ragged", {"X": [[1, 2], [3]]}, "`X` cannot be read as a matrix"
    yield "all proportional", {"X": np.outer([1, 2, 3], [1, 2])}, "All rows of `X` are proportional"
    yield "constant", {"X": np.ones((3, 3))}, "All rows of `X` are proportional"
    left = {"X": np.diag([1.0, 0.0]), "drop_empty": True}
    yield "nothing left", left, "has 1 row and 1 column left"
    yield "all zero", {"X": np.zeros((3, 3)), "drop_empty": True}, "has 0 rows and 0 columns left"


def histograms():
    for pair, words in [
        ((A, B.T), "`A` has shape .* and `B` has shape .*B must be m x n"),
        ((A[0], B), "`A` has 1 dimension"),
        ((A, B[0]), "`B` has 1 dimension"),
        ((X, B), "`A` has 4 rows whose sum is not 1"),
        ((A, X.T), "`B` has 3 rows whose sum is not 1"),
        ((A.astype(complex), B), "`A` has dtype complex128"),
        ((A, None), "`B` is a NoneType, which cannot be read as a matrix"),
    ]:
        yield f"histograms: {words}", {"X": pair}, words
    for name in ("A", "B"):
        for value, what, _ in ENTRIES:
            pair = {"A": A, "B": B}
            pair[name] = changed(pair[name], (1, 2), value)
            words = rf"`{name}` has 1 {what} \(first: row 1, column 2\)"
            yield f"histograms {name} with {value}", {"X": (pair["A"], pair["B"])}, words
        pair = {"A": A, "B": B}
        pair[name] = changed(pair[name], 1, 0.0)
        words = rf"`{name}` has 1 empty row \(first: 1\). Every histogram needs some mass"
        yield f"histograms {name}, empty", {"X": (pair["A"], pair["B"])}, words
    yield "histograms scaled", {"X": (A, B), "normalization_steps": 2}, "are histograms already"


NUMBERS = ("eps", "tau", "tol", "checkpoint_every", "memory_limit")
COUNTS = ("max_iter", "sweeps", "n_threads", "normalization_steps")
NO_TAU = {"tau": 0.0}
OPTIONS = [
    (("restart", "saturate", *NUMBERS), NOT_NUMBERS, "is .*; pass a number"),
    (("saturate", *NUMBERS), [np.nan, np.float32(np.nan)], "is nan; pass a number"),
    (("saturate", *NUMBERS), [-1, -1e-12, -np.inf, np.float32(-2)], "is .*; it must not be negat"),
    ((*NUMBERS, *COUNTS[:3]), [10**400], "is 1000.*; it is too large"),
    (("saturate", "tau", "checkpoint_every"), [np.inf], "is inf; it must be finite"),
    (("smoothing",), [-0.1, np.inf, np.nan, "a", None, 1j], "is .*; (pass a number|it must)"),
    (("restart",), [-0.1, 1, 1.5, np.nan, np.inf], "is .*; (it must (not be n|be )|pass a number)"),
    (("tau",), ["Auto", "none", "", "0.1"], "is .*; pass a number, at least 0, 'auto'"),
    (
        COUNTS,
        [0, -1, 1.5, np.nan, np.inf, "3", True, [1], 1j],
        "is .*; pass a whole number, at lea",
    ),
    (
        ("dtype",),
        ["f2", "i4", complex, "no such", None, 3, str, "Auto", "float16", ["auto"], np.float16],
        "is .*; choose auto, float64 or float32",
    ),
    (("random_state",), [1.5, "seed", True, [1]], "is .*; pass a whole number"),
    (("random_state",), [-1], "is -1; it must not be negative"),
    (("solver",), ["newton", "", "Auto", "POLICY"], "is .*; choose 'auto', 'anderson'"),
    (
        ("solver",),
        [3, None, cm.PowerIteration, object(), ["power"]],
        "is .*; pass a name or an ins",
    ),
    (("solver",), ["policy", cm.PolicyIteration()], "is policy iteration, .*Leave `solver` out"),
    (("progress", "drop_empty"), [1, None, "yes", 0.0], "is .*; pass True or False"),
    (("callback",), [3, "print", [print]], "is .*; pass a function"),
    (("client",), [3, "dask", [], {}], "is .*; pass a `distributed.Client"),
    (("checkpoint",), [3, ["a"], b"a", ""], "is .*; pass the path of a folder"),
    (("checkpoint",), [__file__], "is .*, which is a file; pass a folder"),
    (
        ("device",),
        [3, None, [], ["cuda", 3], {"cuda"}, (), [None], b"cuda"],
        "is .*; pass 'cpu' or",
    ),
    (("device",), [("cpu",), ["cpu", "cuda"], ["cuda:0", "cpu"]], "is .*a list names GPUs only"),
    (("device",), ["gpu", ["gpu"]], "is 'gpu'; pass 'cuda', or 'cuda:0'"),
]


def options():
    for names, values, words in OPTIONS:
        for name, value in ((name, value) for name in names for value in values):
            if value is None and name in ("memory_limit", "n_threads"):
                continue
            given = {name: value} | (NO_TAU if name == "restart" else {})
            yield f"{name} = {value!r}", given, f"`{name}` {words}"
    words = "`restart` is 0.2 and `tau` is 0.001; both determine the weight"
    yield "tau, restart", {"restart": 0.2, "tau": 1e-3}, words
    for value, eps in (("cuda", 0.0), ("cuda", np.inf), ("cuda:1", 0)):
        words = "`device` is 'cuda.*runs on the CPU"
        yield f"device = {value}, eps = {eps}", {"device": value, "eps": eps}, words


def norms():
    for value in ("euclid", "l0", "l-1", "l0.5", 0.5, 0, -1, np.nan, None, "", ["l1"], True, {}):
        yield f"norm = {value!r}", {"norm": value}, "`norm` is .*; pass 'l1', 'l2', 'linf'"
    for value in (("l1",), ("l1", "l1", "l1"), ("l1", "x"), (0.5, "l1"), [], ("l1", np.ones(3))):
        yield f"norm = {value!r}", {"norm": value}, "`norm` (is|has) "
    yield "norm one matrix", {"norm": np.ones((4, 4))}, "`norm` is one matrix; pass two"
    good = np.ones((4, 4)) - np.eye(4), np.ones((3, 3)) - np.eye(3)
    for matrix, words in [
        (np.ones((3, 3)), r"`norm` has shape \(3, 3\); this side has 4 items"),
        (np.ones((4, 4)), "must be finite and symmetric with a zero diagonal"),
        (changed(good[0], (0, 1), 2.0), "must be finite and symmetric with a zero diagonal"),
        (changed(good[0], (0, 1), np.nan), "must be finite and symmetric with a zero diagonal"),
        (0 * good[0], "`norm` is 0 between the different items 0 and 1"),
        (-good[0], "`norm` is -1 between the different items 0 and 1"),
        (good[0].astype(complex), "`norm` is .*; pass 'l1'"),
        (good[0].astype(str), "`norm` is .*; pass 'l1'"),
    ]:
        yield f"norm matrix: {words}", {"norm": (matrix, good[1])}, words


def starts():
    good = np.ones((4, 4)) - np.eye(4)
    for value, words in [
        ("here", "`start` is 'here'; the only valid name is 'random'"),
        (good[:3, :3], r"`start` for samples has shape \(3, 3\); there are 4 samples"),
        (good[0], r"`start` for samples has shape \(4,\)"),
        (-good, "`start` for samples must be finite, nonnegative, zero on the diagonal"),
        (good + np.eye(4), "`start` for samples must be finite, nonnegative, zero on the diag"),
        (np.nan * good, "`start` for samples must be finite"),
        (np.inf * (good + 1), "`start` for samples must be finite"),
        (changed(good, (0, 1), 2.0), "`start` for samples is not symmetric"),
        (0 * good, "maximum 0.0; a metric needs a positive, finite one"),
        ((good, good), r"`start` for features has shape \(4, 4\); there are 3 features"),
        ((None, 2 * np.eye(3)), "`start` for features must be finite"),
        ((good,), r"`start` has 1 matrices; pass \(samples, features\) or one"),
        (object(), "`start` for samples cannot be read as a matrix"),
        ([["a"] * 4] * 4, "`start` for samples cannot be read as a matrix"),
        (good + 0j, "`start` for samples cannot be read as a matrix"),
        ([[0, 1], [1]], "`start` for samples cannot be read as a matrix"),
    ]:
        yield f"start: {words} {type(value).__name__}", {"start": value}, words


def given_metrics():
    for side, k in (("features", 3), ("samples", 4)):
        good = np.ones((k, k)) - np.eye(k)
        for value, words in [
            (changed(good, (0, 1), 2.0), "is not symmetric; pass"),
            (-good, r"has \d+ entries that are negative \(first: -1 between items 0 and 1\)"),
            (changed(good, (0, 1), np.nan), r"has 1 entry that is not finite \(first: nan between"),
            (changed(good, (1, 0), np.inf), r"has 1 entry that is not finite \(first: inf between"),
            (good + np.eye(k), "has a non-zero diagonal; .*Pass distances, not similarities"),
            (0 * good, "is zero everywhere: all"),
            (np.ones((k + 1, k + 1)) - np.eye(k + 1), f"has {k + 1} rows; `X` has {k} {side}"),
            (np.zeros((0, 0)), f"has 0 rows; `X` has {k} {side}"),
            (good[:2], r"has shape \(2, .\); pass a square matrix"),
            (good[0], r"has shape \(.,\); pass a square matrix"),
            (sparse.csr_array(good), "is sparse, .*Pass a dense array"),
            (good + 0j, "has dtype complex128; pass real numbers"),
            (good.astype(str), "has dtype <U.*; pass real numbers"),
            ([[0, 1], [1]], "cannot be read as a matrix"),
            ("lsa", "is 'lsa'; pass a square matrix"),
            (len, "is <built-in function len>; pass a square matrix"),
            ({}, "is a dict, which cannot be read as a matrix"),
        ]:
            yield f"{side}: {words} {type(value).__name__}", {side: value}, f"`{side}` {words}"
        for name, value in (("solver", "power"), ("start", "random"), ("checkpoint", "folder")):
            words = f"`{name}` has no effect with `{side}`.*Leave `{name}` out"
            yield f"{side}, {name}", {side: good, name: value}, words
    both = {"samples": np.ones((4, 4)) - np.eye(4), "features": np.ones((3, 3)) - np.eye(3)}
    yield "both metrics", both, "`samples` and `features` are both given.*Pass one"


def transports():
    for value in ("exact", "tree", "unbalanced(0.1, rho=1)", 0.1, cm.Exact, [cm.Exact()], {}):
        words = "`transport` is .*; pass an object such as cm.Exact"
        yield f"transport = {value!r}", {"transport": value, "eps": 0.1}, words
    for kind in (cm.Exact(), cm.Limit(), cm.Tree(), cm.Unbalanced(0.2), cm.Mahalanobis()):
        words = "`eps` is 0.5 and `transport` is .*; both determine how"
        yield f"transport = {kind!r}, eps", {"transport": kind, "eps": 0.5}, words
    for kind in (cm.Tree(), cm.Unbalanced(0.1), cm.Limit(), cm.Mahalanobis()):
        words = "`solver` is policy iteration, .*Leave `solver` out"
        yield f"{kind!r}, policy", {"transport": kind, "solver": "policy"}, words
    for kind in (cm.Tree(), cm.Mahalanobis(), cm.Exact()):
        words = "`device` is .*cuda.*runs on the CPU: leave `device` out"
        for device in ("cuda", ["cuda:0", "cuda:1"]):
            yield f"{kind!r}, {device}", {"transport": kind, "device": device}, words


def cases():
    """Name, arguments of ``learn``, and the words of the ValueError they must raise."""
    tables = (entries, empties, shapes, histograms, options, norms, starts)
    for table in (*tables, given_metrics, transports):
        yield from table()


def outcome(arguments):
    """What ``learn`` raises, as its type and its words."""
    try:
        cm.learn(**{"X": X, "tau": 0.1} | arguments)  # eps = 0.1, unless a transport is given
    except Exception as raised:
        kind = ValueError if isinstance(raised, ValueError) else type(raised)
        return kind.__name__, str(raised)
    return "nothing", ""
