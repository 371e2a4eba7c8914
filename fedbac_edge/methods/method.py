"""What a method must say for the three tiers to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbac_edge.models.description import Architecture
from fedbac_edge.parts import Part
from fedbac_edge.randomness import generator


@dataclass(frozen=True)
class Role:
    """One network of a device's model.

    `scope` "global": one part for all sites; "cluster": one part per cluster, a site uses that of its own.
    `coefficient` is its factor in the sum of logits that is served, `l2` the lambda of lambda * ||w||^2.
    """

    name: str
    scope: Literal["global", "cluster"]
    coefficient: float = 1.0
    l2: float = 0.0


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
        """Role -> part for a site of `cluster`: what it trains and what it serves."""
        return {role.name: self.part_name(role, cluster) for role in self.roles}

    def coefficients(self) -> dict[str, float]:
        """Role -> factor of its logits in the served sum."""
        return {role.name: role.coefficient for role in self.roles}

    def initial(self, model: Architecture, seed: int) -> dict[str, Part]:
        """Fresh parts. No two roles share a draw: equal networks would get equal gradients."""
        drawn: dict[str, Part] = {}
        for name, role in self.parts().items():
            common = role.scope == "cluster" and self.shared_cluster_start
            rng: np.random.Generator = generator(seed, "cloud", "init", role.name if common else name)
            drawn[name] = model.init(rng)
        return drawn
