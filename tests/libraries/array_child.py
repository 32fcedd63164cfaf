"""A process for a library of arrays: `python array_child.py LIBRARY`. It fails unless Opweave's arrays give NumPy's results.

SciPy and scikit-learn read the switch `SCIPY_ARRAY_API` when they are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import opweave as ow
from opweave import array_api as xp

TOLERANCES = {"float32": 1e-4, "float64": 1e-9}


def scipy_calls() -> dict[str, Callable[..., Any]]:
    import scipy.special
    import scipy.stats

    return {
        "logsumexp": lambda x, y, labels: scipy.special.logsumexp(x, axis=0),
        "softmax": lambda x, y, labels: scipy.special.softmax(x, axis=1),
        "zscore": lambda x, y, labels: scipy.stats.zscore(x, axis=0),
        "pearsonr": lambda x, y, labels: scipy.stats.pearsonr(x[:, 0], y).statistic,
        "p of pearsonr": lambda x, y, labels: scipy.stats.pearsonr(x[:, 0], y).pvalue,
        "ttest_1samp": lambda x, y, labels: scipy.stats.ttest_1samp(x, 0.1, axis=0).statistic,
        "p of ttest_1samp": lambda x, y, labels: scipy.stats.ttest_1samp(x, 0.1, axis=0).pvalue,
    }


def sklearn_calls() -> dict[str, Callable[..., Any]]:
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import Ridge
    from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
    from sklearn.metrics.pairwise import cosine_similarity
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    return {
        "StandardScaler": lambda x, y, labels: StandardScaler().fit_transform(x),
        "MinMaxScaler": lambda x, y, labels: MinMaxScaler().fit_transform(x),
        # The signs of components are not defined.
        "PCA": lambda x, y, labels: abs(PCA(2, svd_solver="full").fit_transform(x)),
        "PCA by eigenvalues": lambda x, y, labels: abs(PCA(2, svd_solver="covariance_eigh").fit_transform(x)),
        "probabilities of LDA": lambda x, y, labels: LinearDiscriminantAnalysis().fit(x, labels).predict_proba(x),
        "classes of LDA": lambda x, y, labels: LinearDiscriminantAnalysis().fit(x, labels).predict(x),
        "Ridge": lambda x, y, labels: Ridge(solver="svd").fit(x, y).predict(x),
        "cosine_similarity": lambda x, y, labels: cosine_similarity(x, x[:7]),
        "r2_score": lambda x, y, labels: r2_score(y, y * 0.9 + x[:, 0]),
        # A mean of truth values, in the default type of floats, which is float32.
        "accuracy_score": lambda x, y, labels: round(accuracy_score(labels, labels[::-1]), 6),
        "mean_squared_error": lambda x, y, labels: mean_squared_error(y, y * 0.9 + x[:, 0]),
    }


def einops_calls() -> dict[str, Callable[..., Any]]:
    import einops
    import einops.array_api

    def of(x: Any) -> Any:
        return einops.array_api if isinstance(x, ow.Array) else einops

    return {
        "rearrange": lambda x, y, labels: of(x).rearrange(x, "(a b) c -> c b a", a=4),
        "reduce": lambda x, y, labels: of(x).reduce(x, "(a b) c -> a c", "mean", b=10),
        "repeat": lambda x, y, labels: of(x).repeat(x, "a c -> a c d", d=3),
        "pack": lambda x, y, labels: of(x).pack([x, y], "a *")[0],
    }


CALLS = {"einops": einops_calls, "scipy": scipy_calls, "sklearn": sklearn_calls}


def main(library: str) -> None:
    calls = CALLS[library]()
    rng = np.random.default_rng(0)
    for data_type, tolerance in TOLERANCES.items():
        x = rng.normal(size=(40, 5)).astype(data_type)
        y = (x @ rng.normal(size=5)).astype(data_type)
        labels = ((x[:, 0] > 0).astype("int32") + (x[:, 1] > 1)).astype("int32")
        for name, call in calls.items():
            with dispatch(library):
                result = call(*map(xp.asarray, (x, y, labels)))
            wanted = np.asarray(call(x, y, labels))
            assert isinstance(result, (ow.Array, float)), (name, type(result))
            np.testing.assert_allclose(np.asarray(result), wanted, rtol=tolerance, atol=tolerance, err_msg=name)
            assert isinstance(result, float) or result.dtype == wanted.dtype, (name, result.dtype, wanted.dtype)
    print(f"{len(calls)} calls of {library} agree")


def dispatch(library: str) -> Any:
    """The switch of scikit-learn for arrays of other libraries than NumPy."""
    from contextlib import nullcontext

    if library != "sklearn":
        return nullcontext()
    from sklearn import config_context

    return config_context(array_api_dispatch=True)


if __name__ == "__main__":
    main(sys.argv[1])
