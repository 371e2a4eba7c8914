"""Methods: which roles a model has, their scope and weight, and what is served. No torch.

A *role* is what a part does in a device's model ("global", "cluster"); a *part* is one network of that
role ("global", "cluster-3"). The cloud keeps the parts, a device trains one part per role.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedbac_edge.methods import fedbac, fedcam, hassle, hierfavg, ifca, local
from fedbac_edge.methods.method import Method
from fedbac_edge.settings.federation import Federation

METHODS: dict[str, Callable[[Federation], Method]] = {
    "fedbac": fedbac.fedbac,
    "fed-cam": fedcam.fedcam,
    "hassle": hassle.hassle,
    "hierfavg": hierfavg.hierfavg,
    "ifca": ifca.ifca,
    "local": local.local,
}


class UnknownMethod(ValueError):
    """The federation names a method that does not exist."""


def method(federation: Federation) -> Method:
    """The federation's method; raises UnknownMethod with the names that exist."""
    name = federation.method.name
    if name not in METHODS:
        raise UnknownMethod(f"[method] no method is called {name!r}; there are: {', '.join(sorted(METHODS))}")
    made = METHODS[name](federation)
    if federation.training.unlabelled == "pseudo" and made.learner == "joint":
        return replace(made, learner="pseudo-labels", labels_the_rest=True)
    return made
