"""HASSLE with SUMA (arXiv 2303.02445), flat: the local round is `learning.hassle`, here is the server's.

    state after round t:  the duals w_S, w_U and residuals r_S, r_U; the duals of round t - 1 for serving
    round 0:              residuals only, beside random duals
    server:               roles S weighted by labelled counts, roles U by unlabelled ones; a role that nobody
                          sent stays as it was
    SM = f(w_S^(t-1)) + f(r_S^t),   UM = f(w_U^(t-1)) + f(r_U^t),   EM = (SM + UM) / 2, in logits

Pairing "download", the default: one exchange a round, with the pseudo-labels of w_S^(t-1) + r_S^(t-1).
Pairing "paper": two exchanges with the same clients. The first one trains the residuals, from the same
pseudo-labels, the only ones at hand; the second one sends r^t and trains the duals, with the pseudo-labels of
w_S^(t-1) + r_S^t. Its first exchange in round 1 is what round 0 would be, so that there is none.

Without residual alignment (`align_residuals = false`) there are no residuals, no round 0, and SM and UM are
the duals of the round's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from fedbac_edge.lab.flat.method import Answer, Bench, Client, Holding, State, View, mean_by_role
from fedbac_edge.learning.batches import step_count
from fedbac_edge.learning.hassle import HassleSettings, HassleUpdate, roles_needed, train_hassle
from fedbac_edge.methods.hassle import R_S, R_U, W_S, W_U, Stage
from fedbac_edge.models.catalog import shrunk
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part

DUALS, RESIDUALS = (W_S, W_U), (R_S, R_U)
BEFORE = "-before"
"""The duals of the round's start, which are served with the residuals of its end."""

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Hassle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paper's settings; `width` is the residuals' share of the channels, in sixteenths."""

    gamma: NonNegative = 0.001
    lam: NonNegative = 1.0
    tau_s: Positive = 2.0
    tau_u: Positive = 1.0
    width: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    residual_steps: Annotated[int, msgspec.Meta(ge=1)] = 100
    residual_weight_decay: NonNegative = 1e-4
    teacher: Literal["dual", "with-residual"] = "dual"
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    align_residuals: bool = True
    pairing: Literal["download", "paper"] = "download"

    def __post_init__(self) -> None:
        if self.pairing == "paper" and not self.align_residuals:
            raise ValueError("pairing=paper exchanges residuals first, and align_residuals=false leaves none")

    @property
    def opening(self) -> bool:
        """Residuals come before the first round."""
        return self.align_residuals and self.pairing == "download"

    def exchanges(self, round: int) -> tuple[HassleExchange, ...]:
        """One, or residuals and then duals."""
        if self.pairing == "paper":
            return HassleExchange(self, "residuals"), HassleExchange(self, "duals")
        return (HassleExchange(self, "whole" if round > 0 else "residuals"),)

    @property
    def roles(self) -> tuple[str, ...]:
        """What is trained."""
        return (*DUALS, *RESIDUALS) if self.align_residuals else DUALS

    def draws(self, holding: Holding) -> bool:
        """All clients that have samples."""
        return holding.labelled + holding.unlabelled > 0

    def begin(self, bench: Bench) -> State:
        """Fresh parts; the supervised one is every other method's first model."""
        seeds = {W_S: "model"}
        state = {
            role: self.architecture(bench, role).init(bench.random("init", seeds.get(role, role)))
            for role in self.roles
        }
        return {**state, **{dual + BEFORE: state[dual] for dual in DUALS}}

    def settings(self, bench: Bench) -> HassleSettings:
        """What the local round is told."""
        training = bench.training
        return HassleSettings(
            epochs=training.epochs,
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            weight_decay=0.0,
            residual_weight_decay=self.residual_weight_decay,
            residual_steps=self.residual_steps,
            gamma=self.gamma,
            lam=self.lam,
            tau_s=self.tau_s,
            tau_u=self.tau_u,
            teacher=self.teacher,
            confidence=self.confidence,
            align_residuals=self.align_residuals,
            clip_norm=training.clip_norm,
        )

    def views(self, state: State) -> Mapping[str, View]:
        """EM, which is served, and the two that it is the mean of."""
        served: dict[str, tuple[str, ...]] = dict(zip(("SM", "UM"), zip(DUALS), strict=True))
        if self.align_residuals:
            served = {
                name: (dual + BEFORE, residual)
                for name, dual, residual in zip(served, DUALS, RESIDUALS, strict=True)
            }
        both = tuple((part, 0.5) for parts in served.values() for part in parts)
        return {"EM": both, **{name: tuple((part, 1.0) for part in parts) for name, parts in served.items()}}

    def architecture(self, bench: Bench, name: str) -> Architecture:
        """Duals have the study's network, residuals the same with fewer channels."""
        return shrunk(bench.model, self.width) if name in RESIDUALS else bench.model


@dataclass(frozen=True)
class HassleExchange:
    """A round, or the residuals' or the duals' half of it."""

    method: Hassle
    stage: Stage

    def download(self, bench: Bench, state: State, holding: Holding, round: int) -> Mapping[str, Part]:
        """What the losses of its data read."""
        settings = self.method.settings(bench)
        needed = roles_needed(settings, holding.labelled > 0, holding.unlabelled > 0, self.stage)
        return {role: state[role] for role in needed}

    def learn(self, bench: Bench, parts: Mapping[str, Part], client: Client, round: int) -> Answer:
        """Residuals, then duals, or those of both that this exchange trains."""
        seed = bench.random("client", round, client.number).integers(0, 2**32, 4).tolist()
        update = train_hassle(
            {role: self.method.architecture(bench, role) for role in parts},
            parts,
            client.labelled,
            client.unlabelled,
            self.method.settings(bench),
            bench.normalisation,
            seed,
            stage=self.stage,
            backend=bench.backend,
        )
        counts = {W_S: update.labelled, R_S: update.labelled}
        weights = {role: counts.get(role, update.unlabelled) for role in update.parts}
        losses = update.losses.values()
        return Answer(update.parts, weights, sum(losses) / max(len(losses), 1), self.steps(bench, update))

    def steps(self, bench: Bench, update: HassleUpdate) -> int:
        """Optimiser steps that made it."""
        training = bench.training
        samples = {W_S: update.labelled, W_U: update.unlabelled}
        return sum(
            step_count(samples[role], training.epochs, training.batch_size)
            if role in DUALS
            else self.method.residual_steps
            for role in update.parts
        )

    def fold(self, bench: Bench, state: State, answers: Mapping[int, Answer], round: int) -> State:
        """Means by kind; the duals of before are kept for serving."""
        folded = mean_by_role(state, answers)
        return {**folded, **{dual + BEFORE: state[dual] for dual in DUALS}}


METHOD = Hassle
