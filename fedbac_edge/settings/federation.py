"""What a federation is: one frozen, typed value that every tier reads.

It is written by a person as `federation.toml`, read by the cloud, and published once as the retained
`spec`; gateways and devices know nothing that is not in it. Defaults are those of the Fed-BAC paper where
it names one (see docs/methods.md); a value out of range is refused with the table and the field named.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fedbac_edge.parts.encodings import Encoding
from fedbac_edge.parts.robust import Rule, RuleName

Natural = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Finite = Annotated[float, Meta(ge=-1e9, le=1e9)]
NonNegative = Annotated[float, Meta(ge=0, le=1e9)]
NO_CLIPPING = 1e9
"""[training] clip_norm that no gradient reaches."""
HostileShare = Annotated[float, Meta(gt=0, lt=0.5)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of federation.toml: unknown fields are refused."""


class ModelTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[model] The architecture, what goes in and what comes out."""

    architecture: str = "lenet"
    input: tuple[Natural, Natural, Natural] = (1, 28, 28)
    """(channels, height, width) of an image."""
    classes: tuple[str, ...]
    """Names in label order; folders of images are mapped by these names."""
    mean: tuple[Finite, ...] = (0.5,)
    std: tuple[Positive, ...] = (0.5,)
    """Normalisation per channel of pixels scaled to 0..1."""
    start: Annotated[str, Meta(max_length=64)] = ""
    """sha256 of the file of weights to begin from (see `beginnings`); empty: they are drawn."""


class MethodTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[method] Which parts exist and how they are averaged."""

    name: str = "fedbac"
    clusters: Annotated[int, Meta(ge=0, le=1000)] = 0
    """K_max; 0 means one per gateway (the paper's default)."""
    initial: Literal["round-robin", "single", "argmin"] = "round-robin"
    """At the start: gateway i on cluster i, everyone on cluster 0, or each where its loss is smallest."""
    places: dict[str, Annotated[int, Meta(ge=0, le=999)]] = {}
    """Gateway -> the cluster it begins in, where its kind is known; the others by `initial`."""
    cluster_start: Literal["common", "each", "warm"] = "common"
    """Initial cluster networks: one common draw, one draw each, or common with a warm start."""
    cloud_weight: Literal["data", "participants"] = "data"
    """n_m: all data of a site, or what its participants trained on."""


class HassleTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[hassle] What the method "hassle" has beside [training] (arXiv 2303.02445; see docs/methods.md)."""

    gamma: NonNegative = 0.001
    """Of the proximity alignment: gamma * ||w - w_other||^2 on each dual model; 0 leaves it out."""
    residual_weight: NonNegative = 1.0
    """lambda: the cross-entropy of dual + residual beside the divergence from the complement."""
    tau_s: Positive = 2.0
    tau_u: Positive = 1.0
    """Temperatures of the residuals r_S and r_U."""
    residual_steps: Natural = 100
    """Optimiser steps of a residual in a round."""
    residual_weight_decay: NonNegative = 1e-4
    residual_width: Annotated[int, Meta(ge=1, le=16)] = 4
    """Sixteenths of the channels of the dual models."""
    teacher: Literal["dual", "with-residual"] = "dual"
    """A residual's complement comes from the other dual model alone, or with its residual."""
    confidence: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Pseudo-labels below this probability are not trained on; 0: all are."""
    align_residuals: bool = True
    """False: the dual models alone; there are no residuals and no round of their own."""
    pairing: Literal["download", "paper"] = "download"
    """Pseudo-labels come from w_S and r_S as downloaded at the start of a round that trains both, or, in two
    rounds for each one of the paper, from w_S and the r_S that was trained beside it in the round before."""


class TrainingTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[training] Local training on a device (paper, experimental settings)."""

    epochs: Natural = 5
    batch_size: Natural = 64
    learning_rate: Positive = 0.01
    learning_rate_decay: Fraction = 0.995
    """Per round, constant inside a round: rate * decay^(t-1)."""
    learning_rate_floor: NonNegative = 1e-4
    """What it never decays below (unless it starts there): a fleet goes on learning after its T rounds."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 5e-4
    clip_norm: Positive = 1.0
    cluster_l2: NonNegative = 1e-3
    """lambda of lambda * ||K||^2, on cluster parts only."""
    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    """Torch threads: part of the specification since sums depend on it."""
    backend: Literal["auto", "compiled", "fused", "reference"] = "auto"
    """The training path; auto is each device's fastest. Bit-equal results need one path everywhere."""
    unlabelled: Literal["ignore", "pseudo"] = "ignore"
    """pseudo: samples without a label get that of the served model, and devices without any label take part.
    (HASSLE has its own way with them, whatever is said here.)"""
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """pseudo: samples whose pseudo-label is less probable are left out of the round; 0: none."""


class SelectionTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[selection] Which devices a gateway asks."""

    method: Literal["thompson", "random"] = "thompson"
    participation: Fraction = 0.8
    """p: max(1, floor(p * N)) of N devices."""
    warm_up: Count = 10
    """tau_TS: rounds of uniform choice before the posteriors rank."""
    credit: Literal["hard", "soft"] = "hard"


class AssignmentTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[assignment] Which cluster a site belongs to."""

    method: Literal["linucb", "argmin", "merge", "fixed"] = "linucb"
    every: Natural = 20
    """tau_re: rounds between two sweeps."""
    alpha: NonNegative = 1.0
    arms: Literal["disjoint", "shared"] = "disjoint"
    reward: Literal["accuracy", "accuracy-change"] = "accuracy"
    live_counts: bool = True
    margin: Fraction = 0.95
    """argmin: a site moves if the best loss is below so many times its current one."""
    confidence: NonNegative = 1.0
    """merge: a network is clearly worse if it is so by more standard deviations of its wrong answers ..."""
    tolerance: NonNegative = 1.5
    """merge: ... and by a larger factor of its loss; next to no difference lies below both."""
    moves: bool = True
    """merge: sites move whose network is clearly worse than another one."""
    merges: bool = True
    """merge: clusters become one whose networks make next to no difference."""


class DeadlineTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[deadlines] When a round closes (seconds), and what an update must pass."""

    min_updates: Natural = 1
    gather_s: Positive = 300.0
    """How long the first round waits for the members of the roster."""
    deadline_min_s: Positive = 60.0
    deadline_max_s: Positive = 3600.0
    evaluation_deadline_s: Positive = 300.0
    norm_gate: bool = True
    """Refuse an update 10 times longer than the running median, once 20 were accepted."""


class WireTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[wire] How updates travel (see `encodings`); models always travel as float32."""

    encoding: Encoding = "float32"


class RobustTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[robust] How each tier averages, against hostile updates (see `robust`)."""

    edge: RuleName = "mean"
    edge_clip_norm: NonNegative = 0.0
    """Of "clip": the longest step; 0: the median of the round's norms."""
    edge_hostile: HostileShare = 0.2
    """Of "trimmed-mean" and "multi-krum": the share of devices that may be hostile."""
    cloud: RuleName = "mean"
    cloud_clip_norm: NonNegative = 0.0
    cloud_hostile: HostileShare = 0.2

    def edge_rule(self) -> Rule:
        """Over the devices of a gateway."""
        return Rule(self.edge, self.edge_clip_norm, self.edge_hostile)

    def cloud_rule(self) -> Rule:
        """Over the sites of the federation, or of a cluster."""
        return Rule(self.cloud, self.cloud_clip_norm, self.cloud_hostile)


class ReleaseTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[releases] When devices that serve get a new model, and the key that signs it."""

    every: Count = 0
    """Rounds between two releases; 0: only at the end of the campaign."""
    key: str = ""
    """The public key in base64; the cloud refuses to sign with another one. Empty: the cloud's own."""
    keep: Annotated[int, Meta(ge=2, le=20)] = 4
    """Models whose files stay with broker and cloud: the newest, and others to go back to."""


class Federation(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole description. `gateways` is the roster: gateway -> its devices (empty: all that join)."""

    name: str
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 1
    rounds: Natural = 100
    eligibility: Literal["roster", "online"] = "online"
    """roster: fixed members, presence changes nothing (bit-equal results); online: those that are there."""
    evaluation: Literal["holdout", "test"] = "holdout"
    """Bandits learn from the devices' hold-outs; "test" is the paper's protocol, in the laboratory only."""
    model: ModelTable
    method: MethodTable = MethodTable()
    training: TrainingTable = TrainingTable()
    selection: SelectionTable = SelectionTable()
    assignment: AssignmentTable = AssignmentTable()
    deadlines: DeadlineTable = DeadlineTable()
    wire: WireTable = WireTable()
    robust: RobustTable = RobustTable()
    releases: ReleaseTable = ReleaseTable()
    hassle: HassleTable | None = None
    """Only with the method "hassle"; None: its defaults."""
    gateways: dict[str, tuple[str, ...]] = {}

    @property
    def cluster_count(self) -> int:
        """K_max: as configured, else one per gateway of the roster (at least one)."""
        return self.method.clusters or max(1, len(self.gateways))

    def learning_rate(self, round: int) -> float:
        """rate * decay^(t-1), above its floor; the only place where it decays."""
        training = self.training
        decayed = training.learning_rate * training.learning_rate_decay ** (round - 1)
        return max(decayed, min(training.learning_rate_floor, training.learning_rate), sys.float_info.min)
