"""What the rows of the errata show, part by part."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smoothplan.experiments.base import Row
from smoothplan.experiments.fits import exponent_beside_logs, mean_interval, power_law
from smoothplan.findings import Axis, Claim, Evidence, Figure, Series, Table

CHILDREN = 5
"""Of a printed second-order sample, all at accuracy ε/√γ: one for the linear term, four for the quadratic one."""

PROMISING = 0.3
"""Certified exponents are claimed for discounts up to this: see the notes."""

CLIPPINGS = {"none": "not clipped", "values": "clipped to the value interval", "printed": "clipped to [0, B]"}

REFINED = 0.1
"""References with errors up to this are good: what remains of a bias there is constant."""

SHORT = 0.1
"""Errors up to so many temperatures are short: remainders are nearly what their leading derivative makes them."""

ROUNDING = 1e-5
"""Of a remainder, relative."""


def predicted_exponent(discount: float) -> float:
    """Of the printed price: T(ε) ≥ 5·T(ε/√γ) makes a sample cost ε^(−2·log 5/log(1/γ)), if not ε^−1; the root, ε^−2."""
    return 2.0 + max(1.0, 2.0 * math.log(CHILDREN) / math.log(1.0 / discount))


def _part(rows: Sequence[Row], part: str, **wanted: Any) -> list[Row]:
    """The rows of a part whose settings are as wanted."""
    return [
        row
        for row in rows
        if row.settings["part"] == part and all(row.settings[name] == value for name, value in wanted.items())
    ]


def _varied(rows: Sequence[Row], name: str) -> list[Any]:
    """The values of a setting, in their order."""
    return list(dict.fromkeys(row.settings[name] for row in rows))


def prices(rows: Sequence[Row]) -> Evidence:
    """All children at ε/√γ, against pairs at what the quadratic term tolerates."""
    discounts = _varied(_part(rows, "price"), "discount")
    certified = _varied(_part(rows, "price", variant="certified"), "epsilon")
    fits: dict[str, list[float]] = {}
    plain = []
    for variant in ("printed", "mended", "certified"):
        for discount in discounts:
            found = _part(rows, "price", variant=variant, discount=discount)
            inverse = [1.0 / row.settings["epsilon"] for row in found]
            logs = [float(row.result["log_calls"]) for row in found]
            fits.setdefault(variant, []).append(exponent_beside_logs(inverse, logs))
            if variant == "certified":
                plain.append(float(np.polyfit(np.log(inverse), logs, 1)[0]))
    predicted = [predicted_exponent(discount) for discount in discounts]
    promising = [e for d, e in zip(discounts, fits["certified"], strict=True) if d <= PROMISING]
    claims = [
        Claim(
            statement="With all five children at ε/√γ the exponent is 2 + max(1, 2·log 5/log(1/γ)), not 3.",
            quantity="largest relative deviation of the printed price's exponent from that, over γ",
            theory="0",
            measured=max(abs(e / p - 1.0) for e, p in zip(fits["printed"], predicted, strict=True)),
            error=None,
            stated=(0.0, 0.05),
            reason="fitted beside logarithms, which δ′ and the cascade bring. Over six decades a power of log 1/ε that "
            "is off by 1 moves the exponent by 1/log(1/ε), about 0.1 of at least 3; an exponent of 3 would be off by "
            "25 % at γ = 0.2 already",
        ),
        Claim(
            statement="With coarser pairs the same algorithm has the exponent 3, whatever γ is.",
            quantity="largest deviation of the mended price's exponent from 3, over γ",
            theory="0",
            measured=max(abs(e - 3.0) for e in fits["mended"]),
            error=None,
            stated=(0.0, 0.3),
            reason="the cascade of references has log₃ log(1/ε) levels, a whole number: prices rise by a factor of 10 "
            "or so with each, over 50 decades; that is 0.02 to 0.1 of an exponent, more where γ is large",
        ),
        Claim(
            statement="Certified schedules have the exponent 3.",
            quantity=f"largest deviation of the certified price's exponent from 3, over γ ≤ {PROMISING:g}",
            theory="0",
            measured=max(abs(e - 3.0) for e in promising),
            error=None,
            stated=(0.0, 0.3),
            reason="rough by 5 % for levels come from grids; over three decades that is 0.1 of an exponent beside "
            "logarithms",
        ),
    ]
    table = Table(
        "errata-prices",
        "Exponents of SecondOrderSmoothCruiser's price in 1/ε, beside logarithms (K = 2, η = 1, δ = 0.1)",
        ("γ", "predicted as printed", "printed", "printed, pairs mended", "certified", "certified, plain slope"),
        [
            (
                discount,
                *(round(number, 2) for number in numbers),
                _if_promising(discount, c),
                round(s, 2),
            )
            for discount, c, s, *numbers in zip(
                discounts, fits["certified"], plain, predicted, fits["printed"], fits["mended"], strict=True
            )
        ],
    )
    figure = Figure(
        name="errata-prices",
        title="The exponent of the second-order price against γ",
        caption="As printed the exponent leaves 3 from γ = 1/25 on and explodes; with coarser pairs it stays. "
        f"Certified schedules, ε from {certified[0]:g} to {certified[-1]:g}, are near 3 for γ ≤ {PROMISING:g} only; "
        "the notes say why.",
        x=Axis("discount γ"),
        y=Axis("exponent of 1/ε", log=True),
        series=[
            Series("printed", discounts, fits["printed"]),
            Series("printed, pairs mended", discounts, fits["mended"]),
            Series("certified, plain slope", discounts, plain),
            Series("2 + max(1, 2·log 5/log(1/γ))", discounts, predicted, look="dashed"),
        ],
    )
    note = (
        f"Certified schedules for γ > {PROMISING:g} do not show the exponent 3 at any ε that was tried: a quadratic "
        "term squares the support of its child, supports enter the certified noise of a mean, and the search leaves "
        "out levels whose support is too wide. Prices there are beyond anyone's means in any case."
    )
    return Evidence(claims, [figure], [table], [note])


def _if_promising(discount: float, exponent: float) -> float | str:
    """A fitted exponent; where the prices follow no power, none."""
    return round(exponent, 2) if discount <= PROMISING else "–"


def clipping(rows: Sequence[Row]) -> Evidence:
    """The bias of samples that are clipped, as the reference gets better."""
    series, means = [], {}
    errors = [float(error) for error in _varied(_part(rows, "clip"), "error")]
    models = len({tuple(row.settings["rewards"]) for row in _part(rows, "clip")})
    for kind, name in CLIPPINGS.items():
        at = [_part(rows, "clip", clipping=kind, error=error) for error in errors]
        exact = [float(np.mean([abs(row.result["exact"]) for row in group])) for group in at]
        measured = [float(np.mean([abs(row.result["bias"]) for row in group])) for group in at]
        noise = [1.96 * float(np.mean([row.result["standard_error"] for row in group])) for group in at]
        means[kind] = (exact, measured)
        if kind == "none":  # far below the noise of any number of samples
            series.append(Series(f"{name}, computed", errors, exact, look="dashed"))
            continue
        low = [max(m - n, m / 10.0) for m, n in zip(measured, noise, strict=True)]  # the axis has no 0
        high = [m + n for m, n in zip(measured, noise, strict=True)]
        series.append(Series(name, errors, measured, low, high))
    good = [k for k, error in enumerate(errors) if error <= REFINED]

    def slope(numbers: Sequence[float]) -> float:
        return power_law([errors[k] for k in good], [[numbers[k]] for k in good]).slope

    deviations = [
        abs(row.result["bias"] - row.result["exact"]) / row.result["standard_error"] for row in _part(rows, "clip")
    ]
    best = min(good, key=lambda k: errors[k])
    claims = [
        Claim(
            statement="Without clipping, the bias of a second-order sample is cubic in the error of its reference.",
            quantity=f"slope of the computed bias against the error, errors ≤ {REFINED:g}",
            theory="3",
            measured=slope(means["none"][0]),
            error=None,
            stated=(2.7, 3.3),
            reason="the next term is quartic, and a tenth of the cubic one or less for errors up to 0.1",
        ),
        Claim(
            statement="Clipped to the value interval, it does not vanish, however good the reference is.",
            quantity=f"slope of the measured bias against the error, errors ≤ {REFINED:g}",
            theory="0: what is cut off an O(1) noise is O(1)",
            measured=slope(means["values"][1]),
            error=None,
            stated=(-0.3, 0.3),
            reason="a constant plus a term that is linear in the error; far from the 3 that a vanishing bias has",
        ),
        Claim(
            statement="With the best reference, clipping is all of the bias.",
            quantity="measured bias of samples clipped to the value interval over the computed one of others",
            theory="unbounded as the reference gets better",
            measured=means["values"][1][best] / means["none"][0][best],
            error=None,
            stated=(100.0, math.inf),
            reason="a constant of about 0.001 to 0.01, against (√3/108)·0.01³/η² at most",
        ),
        Claim(
            statement="Sampled and enumerated biases agree.",
            quantity=f"largest |measured − computed| of {len(deviations)} biases, in standard errors",
            theory="like a maximum of as many normal variables",
            measured=max(deviations),
            error=None,
            stated=(0.0, 5.5),
            reason="beyond 5.5 with a probability of 4e-8 for each",
        ),
    ]
    figure = Figure(
        name="errata-clipping",
        title="Clipping samples to the range of values",
        caption="Mean |bias| of printed second-order samples whose children know the value, over "
        f"{models} models, against the error range of the reference. Only the unclipped bias vanishes.",
        x=Axis("range(Q̂ − Q)", log=True),
        y=Axis("|bias|", log=True),
        series=series,
    )
    return Evidence(claims, [figure])


def values(rows: Sequence[Row]) -> Evidence:
    """Values beside the printed bound."""
    found = _part(rows, "values")
    ratios = [row.result["largest"] / row.result["printed"] for row in found]
    outside = [max(r.result["low"] - r.result["least"], r.result["largest"] - r.result["high"]) for r in found]
    claims = [
        Claim(
            statement="B = (1 + sup F(0) − inf F(0))/(1−γ) is the width of the value interval, not its upper end.",
            quantity="largest value over B, over models",
            theory="more than 1 where F(0) is large beside the rewards",
            measured=max(ratios),
            error=None,
            stated=(1.0001, math.inf),
            reason="V ≤ B would be at most 1; at K = 2, γ = 0.2, η = 1 a model with all rewards 1/2 has (½ + log 2)/1",
        ),
        Claim(
            statement="[(r_lo + inf F(0))/(1−γ), (r_hi + sup F(0))/(1−γ)] contains all values.",
            quantity="largest distance of a value from that interval; negative inside",
            theory="at most 0",
            measured=max(outside),
            error=None,
            stated=(-math.inf, 0.0),
            reason="proved",
        ),
    ]
    table = Table(
        "errata-values",
        "Exact values of random models, the printed bound and our interval",
        ("K, γ, η", "least value", "largest value", "printed B", "our interval"),
        [
            (
                f"{row.settings['actions']}, {row.settings['discount']:g}, {row.settings['temperature']:g}",
                round(row.result["least"], 3),
                round(row.result["largest"], 3),
                round(row.result["printed"], 3),
                f"[{row.result['low']:.3f}, {row.result['high']:.3f}]",
            )
            for row in found
        ],
    )
    return Evidence(claims, tables=[table])


def remainders(rows: Sequence[Row]) -> Evidence:
    """How much of the bounds on Taylor remainders is attained."""
    found = _part(rows, "remainder")
    short = [row for row in found if row.settings["size"] <= SHORT and row.settings["kind"] == "entropy"]
    claims = []
    for order, name, bound in ((1, "first", "range(Δ)²/(8η)"), (2, "second", "(√3/108)·range(Δ)³/η²")):
        largest = max(float(row.result[name]) for row in found)
        least = min(float(row.result[name]) for row in short)
        claims += [
            Claim(
                statement=f"The Taylor remainder of order {order} is at most {bound}.",
                quantity=f"largest remainder of order {order}, in units of its bound",
                theory="at most 1",
                measured=largest,
                error=None,
                stated=(0.0, 1.0 + ROUNDING),
                reason="proved; with room for rounding, where remainders of 1e-8 are differences of numbers like 1",
            ),
            Claim(
                statement=f"That bound of order {order} is sharp.",
                quantity=f"least attained part of the bound of order {order}, over entropy backups, "
                f"range(Δ) ≤ {SHORT:g}·η",
                theory="1 in the limit of short errors",
                measured=least,
                error=None,
                stated=(0.98, 1.0 + ROUNDING),
                reason="thousands of random references and errors come within 1 % of the best; along an error of a "
                "tenth of η the derivative changes by 1 % or less",
            ),
        ]
    claims.append(
        Claim(
            statement="The printed bound (M/6)·‖Δ‖₂³ with M = 3/(2η²) is loose.",
            quantity="largest attained part of the printed bound",
            theory="√3/108·2^(3/2)/(1/4) = 0.18 at most, as range(Δ) ≤ √2·‖Δ‖₂",
            measured=max(float(row.result["printed_second"]) for row in found),
            error=None,
            stated=(0.0, math.sqrt(3.0) / 108.0 * 2.0**1.5 * 4.0 + ROUNDING),
            reason="by the sharp bound",
        )
    )
    sizes = _varied(found, "size")
    series = []
    for order, name in ((1, "first"), (2, "second")):
        for kind in _varied(found, "kind"):
            largest_at = [
                max(float(row.result[name]) for row in _part(found, "remainder", kind=kind, size=size))
                for size in sizes
            ]
            series.append(Series(f"order {order}, {kind}", sizes, largest_at))
    figure = Figure(
        name="errata-remainders",
        title="Attained Taylor remainders",
        caption="The largest remainder over random references and errors, in units of its sharp bound: never above 1, "
        "and 1 for short errors.",
        x=Axis("range(Δ)/η", log=True),
        y=Axis("largest remainder / bound"),
        series=series,
    )
    return Evidence(claims, [figure])


def _pooled(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Σover/Σunder and the ends of its 95 % interval: one model with next to no variance does not decide it."""
    ratio, scale = sum(over) / sum(under), float(np.mean(under))
    _, low, high = mean_interval([(o - ratio * u) / scale for o, u in zip(over, under, strict=True)])
    return ratio, ratio + low, ratio + high


def centring(rows: Sequence[Row]) -> Evidence:
    """Q̂(A) or ⟨π, Q̂⟩ taken off the return of the linear term."""
    kinds, errors = _varied(_part(rows, "centring"), "rewards"), _varied(_part(rows, "centring"), "error")
    names = {"bernoulli": "Bernoulli", "deterministic": "deterministic"}
    ratios: dict[tuple[str, float], tuple[float, float, float]] = {}
    missed, series = [], []
    for kind in kinds:
        expected = []
        for error in errors:
            ours = _part(rows, "centring", rewards=kind, error=error, centring="action")
            printed = _part(rows, "centring", rewards=kind, error=error, centring="policy")
            new, old = ([float(row.result["variance"]) for row in group] for group in (ours, printed))
            drops = [float(row.result["predicted_drop"]) for row in ours]
            ratios[kind, error] = _pooled(new, old)
            expected.append(1.0 - sum(drops) / sum(old))
            missed += [abs(o - n - drop) / (o + n) for o, n, drop in zip(old, new, drops, strict=True)]
        middle, low, high = (list(column) for column in zip(*(ratios[kind, error] for error in errors), strict=True))
        series.append(Series(f"{names[kind]} rewards", errors, middle, low, high))
        series.append(Series(f"{names[kind]} rewards, predicted", errors, expected, look="dashed"))
    best = min(errors)
    noisy, least, most = ratios["bernoulli", best]
    claims = [
        Claim(
            statement="X_A − Q̂(A) has less variance than the printed X_A − ⟨π, Q̂⟩ where the reference is good.",
            quantity=f"ratio of mean variances, Bernoulli rewards, error {best:g}",
            theory="about 0.74",
            measured=noisy,
            error=(most - least) / 2.0,
            stated=(0.55, 0.9),
            reason="Bernoulli rewards of uniform means: 1/6 within actions, and about (1/12)(1 − 1/K) between K = 4 of "
            "them, which is dropped; with the noise of the future 0.74, give or take 0.1 for each model",
        ),
        Claim(
            statement="Where rewards are deterministic, nearly all of the variance goes.",
            quantity=f"ratio of mean variances, deterministic rewards, error {best:g}",
            theory="near 0",
            measured=ratios["deterministic", best][0],
            error=None,
            stated=(0.0, 0.25),
            reason="what is left is γ² times the variance of the next value, a few hundredths of a reward's",
        ),
        Claim(
            statement="The difference is Var_π(Q) − Var_π(Q − Q̂): a bad reference makes the new centring worse.",
            quantity=f"largest error of the predicted difference of {len(missed)} pairs of variances, over their sum",
            theory="0",
            measured=max(missed),
            error=None,
            stated=(0.0, 0.05),
            reason="each variance is known to 1 % or better, so 4 % are four standard errors at least, and returns are "
            "biased a little. No difference at all, or one without Var_π(Q − Q̂), would be off by 0.15 and more",
        ),
    ]
    figure = Figure(
        name="errata-centring",
        title="The variance of the two centrings",
        caption="Variance of X_A − Q̂(A) over that of X_A − ⟨π, Q̂⟩, both summed over models, with 95 % intervals. "
        "Better the better the reference; worse than printed where the reference is as bad as a constant one.",
        x=Axis("range(Q̂ − Q)", log=True),
        y=Axis("ratio of variances"),
        series=series,
    )
    return Evidence(claims, [figure])
