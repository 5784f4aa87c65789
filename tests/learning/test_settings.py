"""One list of settings: every way in has the options of ``learn``, with the same defaults."""

import inspect
import json
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
from cometric import transports
from cometric.learning.learn import read
from cometric.learning.settings import Settings, options
from cometric.transports import TRANSPORTS

X = cm.datasets.torus("unimodal", 12, 10)
DEFAULTS = {part.name: part.default for part in options()}


def parameters(function):
    found = dict(inspect.signature(function).parameters)
    return {name: p for name, p in found.items() if name not in ("self", "X", "adata")}


def defaults(function):
    return {name: p.default for name, p in parameters(function).items()}


def test_learn_has_every_setting_in_order():
    assert defaults(cm.learn) == DEFAULTS
    assert list(parameters(cm.learn)) == list(DEFAULTS)


def test_learn_describes_every_setting():
    described = inspect.getdoc(cm.learn)
    for name in DEFAULTS:
        assert f"\n{name}" in described or f", {name}" in described, name


@pytest.mark.parametrize(
    ("function", "without", "own"),
    [
        (cm.plan, {"start", "random_state", "callback", "checkpoint", "checkpoint_every"}, set()),
        (cm.WassersteinSingularVectors.__init__, {"client"}, {"engine", "mode", "n_neighbors"}),
    ],
)
def test_what_mirrors_learn_has_its_options_and_defaults(function, without, own):
    found = defaults(function)
    assert {name: found[name] for name in DEFAULTS if name not in without} == {
        name: value for name, value in DEFAULTS.items() if name not in without
    }
    assert set(found) == set(DEFAULTS) - without | own


@pytest.mark.parametrize("kind", [cm.Exact, cm.Limit])
def test_a_transport_without_parameters_explains_what_to_pass(kind):
    name = kind.__name__
    with pytest.raises(TypeError, match=rf"{name}\(0.1\): {name} has no .*or cm.Entropic\(0.1\)"):
        kind(0.1)
    with pytest.raises(TypeError, match=rf"{name}\(eps=0.1\): .* Pass cm.{name}\(\)"):
        kind(eps=0.1)
    assert not inspect.signature(kind).parameters
    assert kind() == kind()


def test_resume_accepts_settings_that_do_not_change_the_result():
    found = defaults(cm.resume)
    for part in options():
        if part.name in found and part.name not in ("max_iter", "checkpoint"):
            assert found[part.name] == part.default
    changed = {name for name in found if name in DEFAULTS} - {"client"}
    assert not {p.name for p in options() if p.metadata["compared"]} & changed


def test_scverse_passes_all_other_options_on():
    pytest.importorskip("anndata")
    import cometric.scverse as cms

    found = parameters(cms.tl.learn)
    assert found["options"].kind is inspect.Parameter.VAR_KEYWORD
    for name in ("eps", "tau"):
        assert found[name].default == DEFAULTS[name]


def test_the_command_line_has_an_option_for_every_setting_with_a_help_text():
    from cometric.cli.program import COMMANDS

    found = {option.name: option.settings for option in COMMANDS["learn"].options}
    for part in options():
        assert (part.name in found) == bool(part.metadata["help"]), part.name
        if part.metadata["help"]:
            assert found[part.name].get("default", False) == part.default
    left_out = {p.name for p in options() if not p.metadata["help"]}
    assert left_out == {"client", "progress", "callback"}  # not texts


def test_unknown_options_are_refused_by_what_mirrors_learn():
    with pytest.raises(TypeError, match="`plan` has no option 'alpha'.$"):
        cm.plan(X, alpha=1)
    with pytest.raises(TypeError, match="`WassersteinSingularVectors` has no option 'alpha'.$"):
        cm.WassersteinSingularVectors(alpha=1)


@pytest.mark.parametrize(
    ("function", "option", "meant"),
    [
        (cm.learn, "epss", "eps"),
        (cm.plan, "epss", "eps"),
        (cm.resume, "maxiter", "max_iter"),
        (cm.choose, "n_split", "n_splits"),
        (cm.learn_landmarks, "n_landmark", "n_landmarks"),
        (cm.learn_landmarks, "epss", "eps"),
        (cm.neighbor_graph, "serch", "search"),
        (cm.modules, "resolutoin", "resolution"),
        (cm.rank_features, "n_feature", "n_features"),
        (cm.smooth, "keeps", "keep"),
        (cm.transfer_labels, "n_neighbours", "n_neighbors"),
    ],
)
def test_a_misspelled_option_gets_a_suggestion(function, option, meant):
    message = f"`{function.__name__}` has no option '{option}'. Did you mean '{meant}'\\?"
    with pytest.raises(TypeError, match=message):
        function(X, **{option: 1})


@pytest.mark.parametrize(
    ("estimator", "option", "meant"),
    [
        (cm.WassersteinSingularVectors, "epss", "eps"),
        (cm.WassersteinSingularVectors, "n_neighbours", "n_neighbors"),
        (cm.NeighborsTransformer, "epss", "eps"),
        (cm.NeighborsTransformer, "n_landmark", "n_landmarks"),
    ],
)
def test_a_misspelled_option_of_an_estimator_gets_a_suggestion(estimator, option, meant):
    message = f"`{estimator.__name__}` has no option '{option}'. Did you mean '{meant}'\\?"
    with pytest.raises(TypeError, match=message):
        estimator(**{option: 1})
    assert estimator(**{meant: 1}).get_params()[meant] == 1


def test_a_missing_argument_is_named_as_before():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'X'"):
        cm.learn()


def test_settings_are_complete():
    settings = Settings(tau="0.2")
    assert settings.transport == cm.Entropic(0.1)
    assert (settings.tau, settings.restart, settings.norm) == (0.0, 0.5, "local-0.2")
    assert settings.formula.restart == 0.5
    assert settings.torch_device is None


@pytest.mark.parametrize(
    ("eps", "transport"), [(0, cm.Exact()), (0.3, cm.Entropic(0.3)), (math.inf, cm.Limit())]
)
def test_eps_selects_a_transport(eps, transport):
    assert Settings(eps=eps).transport == transport
    assert Settings(transport=transport).eps == eps
    assert Settings(transport=transport, eps=eps).transport == transport


@pytest.mark.parametrize(
    ("text", "transport"),
    [
        ("exact", cm.Exact()),
        ("entropic(0.3)", cm.Entropic(0.3)),
        (" limit() ", cm.Limit()),
        ("unbalanced(0.3, rho=2)", cm.Unbalanced(0.3, rho=2)),
        ("unbalanced(rho=0.5)", cm.Unbalanced(rho=0.5)),
        ("Exact", cm.Exact()),
        ("Unbalanced(0.3)", cm.Unbalanced(0.3)),
        ("tree(single)", cm.Tree("single")),
        ("tree(linkage='ward')", cm.Tree("ward")),
    ],
)
def test_a_text_describes_a_transport(text, transport):
    assert transports.from_text(text) == transport


@pytest.mark.parametrize(
    "text",
    ["", "(", "sinkhorn", "entropic(0.1).lift", "entropic(**{})", "unbalanced(*[1])", "1 + 1",
     "__import__('os')", "__import__('os').system('true')", "lambda: 0", "exact; limit", "()" * 500,
     "entropic(a.b)", "entropic(open('x'))", "cm.Exact()"],
)  # fmt: skip
def test_a_text_that_is_not_a_transport_is_refused(text):
    with pytest.raises(ValueError, match=r"does not name a transport\. Write one of exact,"):
        transports.from_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "exact(1)",
            r"'exact\(1\)' has other parameters than exact; write exact, which has none\.",
        ),
        ("limit(eps=1)", "has other parameters than limit; write limit, which has none"),
        ("unbalanced(0.1, 1)", r"than unbalanced; write unbalanced\(eps=0.1, rho=1.0\)"),
        ("tree(1, 2)", r"than tree; write tree\(linkage='average'\)"),
        ("entropic(x)", "`eps` is 'x'; it must be positive and finite"),
        ("entropic(1e400)", "`eps` is inf; it must be positive and finite"),
        ("unbalanced(0.1, rho=-1)", "`rho` is -1; it must be positive and finite"),
        ("tree(nearest)", "`linkage` is 'nearest'; choose 'average', 'complete'"),
    ],
)
def test_bad_parameters_of_a_transport_are_named(text, words):
    with pytest.raises(ValueError, match=words):
        transports.from_text(text)


@pytest.mark.parametrize("wrong", ["a", None, 0, -1, np.nan, np.inf, True, [1], 1j, 10**400])
def test_parameters_of_transports_are_positive_numbers(wrong):
    for make, name in (
        (cm.Entropic, "eps"),
        (cm.Unbalanced, "eps"),
        (lambda rho: cm.Unbalanced(0.1, rho=rho), "rho"),
        (cm.Mahalanobis, "scale"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` is .*; it must be positive and finite"):
            make(wrong)


def test_parameters_that_leave_only_rounding_errors_are_refused():
    words = "`eps` is 1e.12; above 1e.08 rounding errors .* Limit"
    for make in (cm.Entropic, cm.Unbalanced, lambda eps: cm.learn(np.eye(3) + 1, eps=eps)):
        with pytest.raises(ValueError, match=words):
            make(1e12)
    with pytest.raises(ValueError, match=r"`rho` is 1e.100; above 1e.18 .*Entropic\(eps\)"):
        cm.Unbalanced(0.1, rho=1e100)


def test_the_largest_parameters_are_accurate():
    rng = np.random.default_rng(0)
    X, C = rng.poisson(0.8, (12, 9)) + np.eye(12, 9, dtype=int), np.ones((9, 9)) - np.eye(9)
    C += abs(np.subtract.outer(np.arange(9.0), np.arange(9.0)))
    X[9:, 0] += 1
    for one, other in (
        (cm.Entropic(1e8), cm.Limit()),
        (cm.Unbalanced(1e8), cm.Limit()),
        (cm.Unbalanced(0.1, rho=1e18), cm.Entropic(0.1)),
    ):
        pair = [cm.learn(X, features=C, transport=kind, tol=1e-6).samples for kind in (one, other)]
        assert_allclose(*pair, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("wrong", ["nearest", None, 3, ["single"], np.ones(2)])
def test_linkages_of_trees_have_names(wrong):
    with pytest.raises(ValueError, match="`linkage` is .*; choose 'average', 'complete', 'ward'"):
        cm.Tree(wrong)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"eps": 0.0, "tau": 0.0},
        {"saturate": 0.2, "restart": 0.1},
        {"transport": cm.Limit(), "tau": "paper", "norm": 3},
        {"transport": cm.Unbalanced(0.2, rho=3.0)},
        {"solver": cm.AndersonIteration(memory=3), "dtype": "f4", "memory_limit": 10**9},
        {"solver": "stochastic", "random_state": np.int64(3), "client": "local"},
    ],
)
def test_settings_survive_json(given):
    settings, _ = read(Settings(**given), X)
    stored = json.loads(json.dumps(settings.to_json()))
    again = Settings.from_json(stored)
    assert again.to_json() == settings.to_json()
    assert again.formula == settings.formula
    assert again.transport == settings.transport
    assert (again.overlap, again.chosen) == (settings.overlap, settings.chosen)


def test_every_transport_has_a_name_in_files():
    for name, kind in TRANSPORTS.items():
        assert Settings(transport=kind()).to_json()["transport"]["kind"] == name


def test_a_stored_setting_that_is_missing_is_named():
    stored = Settings().to_json()
    del stored["sweeps"]
    with pytest.raises(KeyError, match="sweeps"):
        Settings.from_json(stored)


def test_names_are_not_an_option():
    message = "`learn` has no option 'feature_names'. Names come with the data: pass a pandas Data"
    with pytest.raises(TypeError, match=message):
        cm.learn(np.eye(3), feature_names=["a", "b", "c"])


def test_vectors_are_not_distances():
    with pytest.raises(
        ValueError, match=r"shape \(3, 2\); pass a square.*Of vectors, compute dist"
    ):
        cm.learn(np.eye(3) + 1, features=np.ones((3, 2)))
