"""Does gradient descent along C(grad f(x)) converge linearly for biased compressors, and is Top-k faster than Rand-k?

One client, so no memory is needed: x moves along C(grad f(x)). A quadratic, ridge regression on mushrooms and logistic regression with an l2
regulariser on a9a, each with known L, mu and f*. A compressor is in up to three classes, and each has a theorem with its
own step and rate: B1(a, b), step 1/(b L), f - f* shrinks by 1 - (a/b^2) mu/L a round; B2(c, b), 1/(b L) and 1 - (c/b) mu/L; B3(delta)
of the compressor times a factor, 1/L and 1 - mu/(delta L). The rate is measured in the second half of every run, and set
beside the promised one. Top-k and Rand-k (without its factor d/k) are promised the same, mu k/(d L).

Measured: every class keeps its promise on every problem, 2 times over and more: the quadratic nature of f alone gives 2 (natural
compression on the quadratic). Over 1,000 rounds f - f* falls further with Top-k than with Rand-k, each time: by 1.27 to 1.91 times as
much in logarithms. In the second half alone Rand-k is faster on ridge regression with k = 1 and 5 (Top-k has 0.85 of its rate there), as
Top-k is far ahead by then and what is left to it are the directions of least curvature. Top-k with natural dithering is ahead of
Rand-k for k = 1 and 5, and behind for k = 25, where its theorem allows a step of 0.42/L only.

Source: Beznosikov, Horvath, Richtarik, Safaryan, On Biased Compression for Distributed Learning, theorems on CGD.
Needs the LIBSVM sets mushrooms and a9a. Takes 40 s on 2 cores.
"""

import math
import tempfile
from typing import Any

import pandas as pd

import raybench

PROBLEMS: dict[str, tuple[int, dict[str, Any]]] = {  # by name: d, and what a sweep file says
    "quadratic": (100, {"name": "quadratic", "dim": 100, "clients": 1}),
    "ridge": (112, {"name": "least_squares", "dataset": "mushrooms", "regularizer": "l2"}),
    "logistic": (123, {"name": "logistic", "dataset": "a9a", "regularizer": "l2"}),
}
COUNTS = (1, 5, 25)
Operator = dict[str, Any]
OPERATORS: list[tuple[str, int, Operator]] = [
    *(("Top-k", k, {"name": "top_k", "k": k}) for k in COUNTS),
    *(("Rand-k", k, {"name": "as_contractive", "of": f"rand_k:k={k}"}) for k in COUNTS),
    *(
        ("Top-k + natural dithering", k, {"name": "top_k_natural_dithering", "k": k, "p": "inf"})
        for k in COUNTS
    ),
    ("nearest power of two", 0, {"name": "exponential_rounding", "unbiased": False}),
    ("natural compression", 0, {"name": "natural"}),
    ("scaled sign", 0, {"name": "scaled_sign"}),
]


def measure(full: bool) -> pd.DataFrame:
    """Return a row per problem, operator and class; full: ten times the rounds.

    Columns: problem, operator, k (0: all coordinates), kind (the class), step (times L); how much the logarithm of f - f* falls a round:
    bound, as promised; rate, in the second half of the run; whole, in all of it (means over seeds).
    """
    rows = []
    for problem, (d, given) in PROBLEMS.items():
        for operator, k, mapping in OPERATORS:
            promised = classes(mapping, d)
            steps = sorted({step for step, _ in promised.values()})
            found = rates({**given, "clients": 1}, mapping, steps, 10_000 if full else 1000)
            for kind, (step, share) in promised.items():
                at = found[found["step_multiple"] == step]
                bound = -math.log1p(-share * at["mu"].iloc[0] / at["L"].iloc[0])
                row = {"problem": problem, "operator": operator, "k": k, "kind": kind, "step": step}
                rows.append({**row, "bound": bound, **at[["rate", "whole"]].mean()})
    return pd.DataFrame(rows)


def classes(operator: Operator, d: int) -> dict[str, tuple[float, float]]:
    """Return, by class that an operator is in, the step times L and the promised rate over mu/L."""
    bound = raybench.compressor(**operator).bind(d).compressor
    b1, b2, b3 = bound.b1(d), bound.b2(d), bound.b3(d)
    found = {
        "B1": b1 and (1 / b1[1], b1[0] / b1[1] ** 2),
        "B2": b2 and (1 / b2[1], b2[0] / b2[1]),
        "B3": b3 and (b3[1], 1 / b3[0]),
    }
    return {kind: promise for kind, promise in found.items() if promise}


def rates(
    problem: dict[str, Any], operator: Operator, steps: list[float], rounds: int
) -> pd.DataFrame:
    """Return step_multiple, L, mu, rate and whole of every step and seed."""
    config = {
        "name": "cgd_rates",
        "problem": problem,
        "algorithm": "dcgd",
        "compressor": operator,
        "step_size": {"theory": steps, "of": "gd"},
        "seed": [0, 1, 2],
        "rounds": rounds,
        "stop": {"suboptimality": 1e-11},
        "record": {"every": 10},
    }
    with tempfile.TemporaryDirectory(prefix="raybench-") as folder:
        raybench.sweep(config, folder, inline=True)
        rows = raybench.load(folder).sort_values(["cell", "round"])
    later = rows[rows["round"] >= rows.groupby("cell")["round"].transform("max") / 2]
    last = rows.groupby("cell").last()
    found = last[["step_multiple", "L", "mu"]]
    for name, part in (("rate", later), ("whole", rows)):
        first = part.groupby("cell").first()
        fell = (first["suboptimality"] / last["suboptimality"]).map(math.log)
        found = found.assign(**{name: fell / (last["round"] - first["round"])})
    return found
