"""What a method must say for the three tiers to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbac_edge.models.catalog import shrunk
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.randomness import generator

Kind = Literal["samples", "labelled", "unlabelled"]
"""What a role learns from, and so what its updates weigh: all that was trained on, or one kind of it."""
FULL_WIDTH = 16
"""Sixteenths of the channels of the federation's architecture."""


@dataclass(frozen=True)
class Role:
    """One network of a device's model.

    `scope` "global": one part for all sites; "cluster": one part per cluster, a site uses that of its own.
    `l2` is the lambda of lambda * ||w||^2. `weight` says which samples it learns from: a device without any
    neither trains nor sends it. `width` is its share of the architecture's channels, in sixteenths. `needs`
    are the other roles that its training reads. It is trained in the round `begins`, and in every `every`-th
    one after that.
    """

    name: str
    scope: Literal["global", "cluster"]
    l2: float = 0.0
    weight: Kind = "samples"
    width: int = FULL_WIDTH
    needs: tuple[str, ...] = ()
    begins: int = 1
    every: int = 1

    def is_trained_in(self, round: int) -> bool:
        """True when this round is one of its own."""
        return round >= self.begins and (round - self.begins) % self.every == 0


@dataclass(frozen=True)
class Term:
    """A role's share in a view: `coefficient` times its logits; `generation` 1 is the part as the
    latest round found it, also when that round left it as it was."""

    role: str
    coefficient: float = 1.0
    generation: Literal[0, 1] = 0


@dataclass(frozen=True)
class View:
    """A model made of parts: the sum of its terms' logits. No role has two terms."""

    name: str
    terms: tuple[Term, ...]

    def coefficients(self) -> dict[str, float]:
        """Role -> factor of its logits."""
        return {term.role: term.coefficient for term in self.terms}


Policy = Literal["linucb", "argmin", "merge", "fixed"]
"""How sites change clusters: by the bandit, to the smallest loss, alike ones together, or not at all."""
Placement = Literal["round-robin", "single", "argmin"]
"""Where sites begin: dealt out in name order, all in cluster 0, or each where its loss is smallest."""


@dataclass(frozen=True)
class Method:
    """Roles of a model and how its clusters are assigned."""

    roles: tuple[Role, ...]
    clusters: int = 1
    policy: Policy = "fixed"
    placement: Placement = "round-robin"
    shared_cluster_start: bool = True
    """True when all parts of a cluster role start from one common draw."""
    turns: tuple[tuple[str, ...], ...] = ()
    """Roles that a device trains in turn, each on what the others leave over; empty: all jointly."""
    learner: str = "joint"
    """How a device trains its roles (`learning.learner`)."""
    labels_the_rest: bool = False
    """True when roles that learn from "samples" learn from those without a label too."""
    views: tuple[View, ...] = ()
    """Models that are measured; the first is served and exported. Empty: the plain sum of all roles."""
    judged: str = ""
    """The view that devices score when a round starts, made of the round's own parts; "": the served one."""

    @property
    def served_view(self) -> View:
        """What sites serve."""
        return self.views[0] if self.views else View("sum", tuple(Term(role.name) for role in self.roles))

    @property
    def judged_view(self) -> View:
        """What a device scores on its hold-out at a round's start, whatever the terms' generations."""
        return self.view(self.judged)

    def view(self, name: str) -> View:
        """The view of this name, "" for the served one. Raises KeyError."""
        views = {view.name: view for view in (self.views or (self.served_view,))}
        return views[name] if name else self.served_view

    @property
    def looks_back(self) -> bool:
        """True when a view has parts of a round ago."""
        return any(term.generation for view in self.views for term in view.terms)

    @property
    def takes_unlabelled(self) -> bool:
        """True when samples without labels are trained on."""
        return self.labels_the_rest or any(role.weight == "unlabelled" for role in self.roles)

    @property
    def reassigns(self) -> bool:
        """True when the cloud holds an evaluation phase every tau_re rounds and may move sites."""
        return self.policy != "fixed" and self.clusters > 1

    @property
    def places_by_loss(self) -> bool:
        """True when an evaluation phase before the first round decides where sites begin."""
        return self.placement == "argmin" and self.clusters > 1

    def part_name(self, role: Role, cluster: int) -> str:
        """The part that plays `role` at a site of `cluster`."""
        return role.name if role.scope == "global" else f"{role.name}-{cluster}"

    def parts(self) -> dict[str, Role]:
        """Every part of the federation, in a fixed order."""
        named: dict[str, Role] = {}
        for role in self.roles:
            for cluster in range(1 if role.scope == "global" else self.clusters):
                named[self.part_name(role, cluster)] = role
        return named

    def served(self, cluster: int) -> dict[str, str]:
        """Role -> part for a site of `cluster`: what it trains and what its views are made of."""
        return {role.name: self.part_name(role, cluster) for role in self.roles}

    def usable(self, labelled: int, unlabelled: int) -> int:
        """How many of a device's samples can be trained on: what it says of itself as `samples`."""
        return labelled + unlabelled if self.takes_unlabelled else labelled

    def trained(self, round: int, samples: int, unlabelled: int) -> tuple[str, ...]:
        """The roles that a device with so many samples, `unlabelled` of them without labels, trains."""
        return tuple(
            role.name
            for role in self.roles
            if role.is_trained_in(round) and weight_of(role, samples, unlabelled) > 0
        )

    def needed(self, round: int, samples: int, unlabelled: int) -> tuple[str, ...]:
        """The roles without which it cannot: what it trains, what that reads, and what it judges."""
        trained = set(self.trained(round, samples, unlabelled))
        read = {other for role in self.roles if role.name in trained for other in role.needs}
        judged = {term.role for term in self.judged_view.terms}
        return tuple(role.name for role in self.roles if role.name in trained | read | judged)

    def together(self) -> dict[str, str]:
        """Role -> name of the group of roles that always travel together."""
        groups: dict[tuple[Kind, int, int], list[str]] = {}
        for role in self.roles:
            groups.setdefault((role.weight, role.begins, role.every), []).append(role.name)
        return {name: "+".join(sorted(names)) for names in groups.values() for name in names}

    def architectures(self, model: Architecture) -> dict[str, Architecture]:
        """Role -> its network: `model`, or the same with its share of the channels."""
        return {
            role.name: model if role.width == FULL_WIDTH else shrunk(model, role.width, FULL_WIDTH)
            for role in self.roles
        }

    def initial(self, model: Architecture, seed: int) -> dict[str, Part]:
        """Fresh parts. No two roles share a draw: equal networks would get equal gradients."""
        drawn: dict[str, Part] = {}
        networks = self.architectures(model)
        for name, role in self.parts().items():
            common = role.scope == "cluster" and self.shared_cluster_start
            rng: np.random.Generator = generator(seed, "cloud", "init", role.name if common else name)
            drawn[name] = networks[role.name].init(rng)
        return drawn


def weight_of(role: Role, samples: int, unlabelled: int) -> int:
    """What an update of `role` counts, out of `samples` of which `unlabelled` have no label."""
    by_kind = {"samples": samples, "labelled": samples - unlabelled, "unlabelled": unlabelled}
    return by_kind[role.weight]
