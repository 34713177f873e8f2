"""Confidence intervals for shares and means."""

from __future__ import annotations

import math

from scipy import special

Z_95 = 1.959963984540054
"""Standard normal quantile of 0.975."""


def wilson(successes: float, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953) for a binomial share.

        (p + z^2/2n -+ z sqrt(p (1-p) / n + z^2 / 4n^2)) / (1 + z^2/n),   p = successes / n

    `successes` may contain halves (draws). Scores with draws vary less than wins and losses of the same mean, so the
    interval is then conservative. Without trials it is (0, 1).
    """
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    middle, scale = share + z * z / (2 * trials), 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def student(mean: float, deviation: float, trials: int) -> tuple[float, float]:
    """Student's 95% interval for the expectation that `mean` estimates.

        mean -+ t s / sqrt(n),   t = the 0.975 quantile of Student's distribution with n - 1 degrees of freedom

    `deviation` is s, the sample standard deviation with n - 1 in its denominator. The interval of a single trial is
    infinite.
    """
    if trials < 2:
        return -math.inf, math.inf
    # Not `scipy.stats.t.ppf`, which computes the same: importing `scipy.stats` takes a second.
    spread = float(special.stdtrit(trials - 1, 0.975)) * deviation / math.sqrt(trials)
    return mean - spread, mean + spread
