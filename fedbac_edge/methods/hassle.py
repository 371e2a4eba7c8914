"""HASSLE with SUMA (arXiv 2303.02445): federated learning where not every device has labels.

Two *dual* models of one architecture: w_S learns from labelled samples alone, w_U from pseudo-labelled ones
alone. Two compact *residual* models complement them: r_S = r_{U-S} learns what w_U knows and w_S does not,
r_U the reverse. Superscript t: after round t. Served at the end of round t, from the duals that the round
started with and the residuals that it ends with:

    SM = f(w_S^(t-1)) + f(r_S^t)        UM = f(w_U^(t-1)) + f(r_U^t)        EM = (SM + UM) / 2

w_S and r_S weigh by labelled samples, w_U and r_U by unlabelled ones. Round 1 trains the residuals only, on
random duals: it is the preliminary round of the authors' code. From then on a device trains its residuals
first and its duals second, and sends both at once. What they train on is `learning.hassle`.

That is the pairing "download": a device pairs the models that it downloads. With the pairing "paper" duals
learn beside the residuals of the same round, and a round of the paper is two of the federation, each with
devices selected for it: odd rounds train residuals, even ones duals. The views hold after both kinds, since
generation 1 is a part as the round found it, and a round of residuals leaves the duals as they were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fedbac_edge.methods.method import Method, Role, Term, View
from fedbac_edge.settings.federation import Federation, HassleTable

W_S, W_U, R_S, R_U = "supervised", "unsupervised", "residual-s", "residual-u"

Stage = Literal["whole", "residuals", "duals"]
"""What a device trains in one exchange."""

SM = (Term(W_S, 1.0, generation=1), Term(R_S, 1.0))
UM = (Term(W_U, 1.0, generation=1), Term(R_U, 1.0))


def hassle(federation: Federation) -> Method:
    """Four global roles; a device downloads what its own data's losses read, and sends what it trained."""
    table = federation.hassle or HassleTable()
    if not table.align_residuals:
        return _duals_alone(table)
    width = table.residual_width
    every = 2 if table.pairing == "paper" else 1
    # With teacher "with-residual" the complement of w_S is f(w_U) + f(r_U) - f(w_S), and the reverse.
    other = (R_U,) if table.teacher == "with-residual" else ()
    return Method(
        roles=(
            Role(W_S, "global", weight="labelled", needs=(W_U,), begins=2, every=every),
            Role(W_U, "global", weight="unlabelled", needs=(W_S, R_S), begins=2, every=every),
            Role(R_S, "global", weight="labelled", width=width, needs=(W_S, W_U, *other), every=every),
            Role(R_U, "global", weight="unlabelled", width=width, needs=(W_S, W_U, R_S), every=every),
        ),
        learner="hassle",
        views=(View("EM", _mean(SM, UM)), View("SM", SM), View("UM", UM)),
        judged="SM",  # every device holds it, and only those with labels can judge
    )


def stage(table: HassleTable, round: int) -> Stage:
    """What the devices of this round of the federation train."""
    if not table.align_residuals:
        return "whole"
    if table.pairing == "paper":
        return "residuals" if round % 2 else "duals"
    return "residuals" if round == 1 else "whole"


def _duals_alone(table: HassleTable) -> Method:
    """Without residual alignment: SM = f(w_S^t), UM = f(w_U^t), and no round without duals."""
    aligned = (W_U,) if table.gamma else ()
    return Method(
        roles=(
            Role(W_S, "global", weight="labelled", needs=aligned),
            Role(W_U, "global", weight="unlabelled", needs=(W_S,)),
        ),
        learner="hassle",
        views=(
            View("EM", _mean((Term(W_S),), (Term(W_U),))),
            View("SM", (Term(W_S),)),
            View("UM", (Term(W_U),)),
        ),
        judged="SM",
    )


def _mean(*sums: tuple[Term, ...]) -> tuple[Term, ...]:
    """The mean of the logits of several sums."""
    return tuple(replace(term, coefficient=term.coefficient / len(sums)) for each in sums for term in each)
