"""Scenarios by name: the settings of the paper (arXiv 2605.11815), and the methods that it compares.

The paper: M = 10 servers with 10 clients each (20 with 25 in the scaling study), T rounds, E = 5 epochs of
batches of 64, learning rate 0.01 * 0.995^(t-1), gradient clipped at 1.0, lambda = 1e-3, p = 0.8, tau_re = 20;
everyone in one cluster at the start on Fashion-MNIST, round-robin elsewhere. Momentum, weight decay and
tau_TS = 10 are defaults of the federation.

HASSLE's (arXiv 2303.02445; epochs and decay from the authors' code): 20 clients on one server, 8 of them
drawn in each of 200 rounds, E = 10 epochs of batches of 128, rate 0.1, alpha = 0.1, a tenth labelled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fedbac_edge.lab.scenario import Cut, Scenario, ScenarioError, roster
from fedbac_edge.settings.federation import (
    NO_CLIPPING,
    DeadlineTable,
    Federation,
    HassleTable,
    MethodTable,
    SelectionTable,
    TrainingTable,
)
from fedbac_edge.settings.pictures import MODELS

ROUNDS = {"fashion-mnist": 100, "mnist": 100, "cifar10": 200, "cifar100": 200, "svhn": 150}
"""MNIST and CIFAR-100 are not in the paper: they get the settings of their nearest relatives."""
SCALING = "scaling"


def preset(name: str) -> Scenario:
    """`paper/DATA-ALPHA`, `paper/DATA-scaling` or `paper/hassle-DATA`; raises ScenarioError with the names
    there are.
    """
    if name.removeprefix("paper/hassle-") in MODELS and name.startswith("paper/hassle-"):
        return _hassle(name, name.removeprefix("paper/hassle-"))
    found = re.fullmatch(r"paper/([a-z0-9-]+)-([0-9.]+|scaling)", name)
    if found is None or found[1] not in MODELS:
        raise ScenarioError(
            f"no preset is called {name!r}; there are paper/DATA-ALPHA and paper/DATA-{SCALING} with DATA "
            f"one of {', '.join(MODELS)} and ALPHA the servers' Dirichlet parameter, for example "
            f"paper/fashion-mnist-0.1; paper/hassle-DATA, for example paper/hassle-cifar10; or give a "
            f"federation.toml"
        )
    data, kind = found[1], found[2]
    scaling = kind == SCALING
    try:
        cut = Cut(data=data, alpha_server=0.5 if scaling else float(kind), alpha_client=0.5)
    except ValueError as error:
        raise ScenarioError(f"{name}: {kind} is not a Dirichlet parameter") from error
    return Scenario(
        preset=name,
        method="fedbac",
        federation=Federation(
            name=name.removeprefix("paper/"),
            rounds=ROUNDS[data],
            eligibility="roster",
            evaluation="test",
            model=MODELS[data],
            method=MethodTable(initial="single" if data == "fashion-mnist" else "round-robin"),
            deadlines=DeadlineTable(min_updates=1, norm_gate=False),  # the paper has no gate
            gateways=roster(20, 25) if scaling else roster(10, 10),
        ),
        cut=cut,
    )


def _hassle(name: str, data: str) -> Scenario:
    """One gateway, plain rules; no gate between an update and the average, as there is none in the paper.

    The paper's rate is for a network with batch normalisation. A LeNet has none and diverged with it in the
    second round (Fashion-MNIST, seed 1); on gray images the rate is 0.03, and gradients are clipped at 1.0.
    """
    gray = MODELS[data].input[0] == 1
    return Scenario(
        preset=name,
        method="hassle",
        federation=Federation(
            name=name.removeprefix("paper/"),
            rounds=200,
            eligibility="roster",
            evaluation="test",
            model=msgspec.structs.replace(MODELS[data], architecture="lenet" if gray else "resnet8"),
            method=MethodTable(name="hassle", cloud_weight="participants"),
            training=TrainingTable(
                epochs=10,
                batch_size=128,
                learning_rate=0.03 if gray else 0.1,
                learning_rate_decay=1.0,
                weight_decay=0.0,
                clip_norm=1.0 if gray else NO_CLIPPING,
            ),
            selection=SelectionTable(method="random", participation=0.4),
            deadlines=DeadlineTable(min_updates=1, norm_gate=False),
            hassle=HassleTable(),
            gateways=roster(1, 20),
        ),
        cut=Cut(data=data, form="annotation", alpha_client=0.1),
    )


METHODS: dict[str, Mapping[str, Any]] = {
    "fedbac": {"method": {"name": "fedbac"}, "selection": {"method": "thompson"}},
    # Ours: private networks first, alike ones merged by evidence (`methods.merging`).
    "fedbac+": {
        "method": {"name": "fedbac", "initial": "round-robin"},
        "selection": {"method": "thompson"},
        "assignment": {"method": "merge"},
    },
    # Ablations: Fed-BAC without one of its two bandits.
    "fixed": {
        "method": {"name": "fedbac", "initial": "round-robin"},
        "selection": {"method": "thompson"},
        "assignment": {"method": "fixed"},
    },
    "single": {
        "method": {"name": "fedbac", "initial": "single"},
        "selection": {"method": "thompson"},
        "assignment": {"method": "fixed"},
    },
    "random": {"method": {"name": "fedbac"}, "selection": {"method": "random"}},
    # Baselines; p = 1 as in the paper.
    "hierfavg": {"method": {"name": "hierfavg"}, "selection": {"method": "random", "participation": 1.0}},
    "hierfavg-wide": {
        "method": {"name": "hierfavg"},
        "selection": {"method": "random", "participation": 1.0},
        "model": {"architecture": "lenet-wide"},
    },
    "ifca": {
        "method": {"name": "ifca", "clusters": 5},
        "selection": {"method": "random", "participation": 1.0},
    },
    "fed-cam": {
        "method": {"name": "fed-cam", "clusters": 5},
        "selection": {"method": "random", "participation": 1.0},
        "assignment": {"margin": 1.0},
    },
    "hassle": {"method": {"name": "hassle", "cloud_weight": "participants"}},
    "local": {"method": {"name": "local"}, "selection": {"method": "random", "participation": 1.0}},
}
"""Method as one asks for it -> what it sets in the federation's tables."""


def with_method(scenario: Scenario, name: str) -> Scenario:
    """The scenario under another method; raises ScenarioError with the names there are."""
    if name not in METHODS:
        raise ScenarioError(f"no method is called {name!r}; there are: {', '.join(METHODS)}")
    tables = {
        table: msgspec.structs.replace(getattr(scenario.federation, table), **fields)
        for table, fields in METHODS[name].items()
    }
    federation = msgspec.structs.replace(scenario.federation, **tables)
    own = (federation.hassle or HassleTable()) if federation.method.name == "hassle" else None
    federation = msgspec.structs.replace(federation, hassle=own)
    return msgspec.structs.replace(scenario, method=name, federation=federation)
