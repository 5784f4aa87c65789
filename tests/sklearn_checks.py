"""Checks of scikit-learn that our estimators are expected to fail, and why."""

EMPTY = "its data have empty rows, which are histograms of nothing and are refused"
EXPECTED_FAILURES = {
    "check_estimators_dtypes": f"rounded to integers, {EMPTY}",
    "check_estimator_sparse_tag": EMPTY,
    "check_estimator_sparse_array": EMPTY,
    "check_estimator_sparse_matrix": EMPTY,
}
