"""Which step of error feedback is the best that can be proved on strongly convex problems, and what happens just above it?

One client, L = 1, mu = 1/kappa, any function of the class and any contractive compressor: the largest factor by which the
function V of the rule ``tight`` can grow in a round, by semidefinite programming, for EF14 and EF21 at multiples of the step of
that rule; and what the rule ``pl`` promises at its own step.

Measured: at the step itself the factor is that of the formula, the same for both methods, to 1e-5. A step a percent larger or smaller has a
larger factor in all settings. The kink: a percent above is as bad as kappa percent below, and at 1 + 1/kappa times the step V
need not fall at all, so that of a well-tuned step nothing is left at 1 % above where kappa = 100. By what they promise the rule
pl needs 1.9 to 3.4 times as many rounds as the rule tight, 2.7 times at kappa = 10 and alpha = 0.5.

Source: Berg Thomsen, Taylor, Dieuleveut 2025 (arXiv 2506.05271), the rates of EF14 and EF21 against the step, one agent; 2026
(arXiv 2605.31594), several. Needs pip install 'raybench[certify]'. Takes half a minute on 2 cores.
"""

from math import log

import pandas as pd

import raybench

METHODS = ("ef14", "ef21")
KAPPAS, ALPHAS = (2.0, 10.0, 100.0), (0.1, 0.5, 0.9)
MULTIPLES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0, 1.01, 1.02, 1.05, 1.25)  # and 1 + 1/kappa


def measure(full: bool) -> pd.DataFrame:
    """Return a row per method, kappa, alpha, rule and multiple of its step.

    Columns: algorithm, kappa, alpha, rule, multiple, step_size; factor: the largest V^1/V^0; last: whether the multiple is 1 + 1/kappa; promise: what the theorem says of it, 1
    where it says nothing; rounds: in which the promise is a tenth, missing where it is none.
    """
    rows = []
    for method in METHODS:
        for kappa in KAPPAS:
            for alpha in ALPHAS:
                options = {"mu": 1 / kappa, "alpha": alpha, "rounds": 1}
                cases = [("tight", m) for m in sorted({*MULTIPLES, 1 + 1 / kappa})]
                cases += [("pl", 1.0)] if method == "ef21" else []
                for rule, multiple in cases:
                    c = raybench.certify(
                        method, rule=rule, step_multiple=multiple, measure="lyapunov", **options
                    )
                    rows.append(
                        {
                            "algorithm": method,
                            "kappa": kappa,
                            "alpha": alpha,
                            "rule": rule,
                            "multiple": multiple,
                            "step_size": c.step_size,
                            "factor": c.worst,
                            "last": multiple == 1 + 1 / kappa,
                            "promise": 1.0 if c.bound is None else c.bound,
                            "rounds": None if c.bound is None else log(0.1) / log(c.bound),
                        }
                    )
    return pd.DataFrame(rows)
