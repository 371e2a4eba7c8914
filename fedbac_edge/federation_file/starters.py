"""Ready-made federations for `fedbac init` and `fedbac demo`."""

from __future__ import annotations

from collections.abc import Callable

from fedbac_edge.settings.federation import (
    AssignmentTable,
    DeadlineTable,
    Federation,
    HassleTable,
    MethodTable,
    ModelTable,
    SelectionTable,
    TrainingTable,
)
from fedbac_edge.settings.pictures import MODELS

FASHION_MODEL = MODELS["fashion-mnist"]


def roster(gateways: int, devices: int) -> dict[str, tuple[str, ...]]:
    """gw1: dev-1-1, dev-1-2 ...: the names that `fedbac partition` gives its shards."""
    return {f"gw{m}": tuple(f"dev-{m}-{i}" for i in range(1, devices + 1)) for m in range(1, gateways + 1)}


def fleet(name: str) -> Federation:
    """Every device that joins trains: two gateways, devices come and go."""
    return Federation(name=name, model=FASHION_MODEL, gateways={"gw1": (), "gw2": ()})


def demo(name: str) -> Federation:
    """Small enough for minutes, with both bandits at work: ranked selection from round 3, a sweep every 3."""
    return Federation(
        name=name,
        rounds=15,
        eligibility="roster",
        model=FASHION_MODEL,
        training=TrainingTable(epochs=1, batch_size=32, learning_rate=0.03),
        selection=SelectionTable(participation=0.75, warm_up=2),
        assignment=AssignmentTable(every=3),
        deadlines=DeadlineTable(gather_s=120.0),
        gateways=roster(2, 4),
    )


def hassle(name: str) -> Federation:
    """For a fleet of which some devices have labels for all images, some for a few, most for none."""
    return Federation(
        name=name,
        rounds=60,
        model=FASHION_MODEL,
        method=MethodTable(name="hassle", cloud_weight="participants"),
        training=TrainingTable(epochs=2, learning_rate=0.05, weight_decay=0.0),
        selection=SelectionTable(method="random"),
        hassle=HassleTable(),
        gateways={"gw1": (), "gw2": ()},
    )


def hassle_demo(name: str) -> Federation:
    """The same in little: every device in every round, a first round of residuals alone."""
    return Federation(
        name=name,
        rounds=15,
        eligibility="roster",
        model=FASHION_MODEL,
        method=MethodTable(name="hassle", cloud_weight="participants"),
        training=TrainingTable(epochs=3, batch_size=32, learning_rate=0.03, weight_decay=0.0),
        selection=SelectionTable(method="random", participation=1.0),
        deadlines=DeadlineTable(gather_s=120.0),
        hassle=HassleTable(residual_steps=50),
        gateways=roster(2, 4),
    )


DEMOS: dict[str, Callable[[str], Federation]] = {"fedbac": demo, "hassle": hassle_demo}
"""Method -> the federation of `fedbac demo`."""


def _paper(model: ModelTable, rounds: int, method: MethodTable) -> Callable[[str], Federation]:
    def make(name: str) -> Federation:
        return Federation(
            name=name,
            rounds=rounds,
            eligibility="roster",
            model=model,
            method=method,
            gateways=roster(10, 10),
        )

    return make


PRESETS: dict[str, Callable[[str], Federation]] = {
    "fleet": fleet,
    "demo": demo,
    "hassle": hassle,
    "paper-fashion-mnist": _paper(FASHION_MODEL, 100, MethodTable(initial="single")),
    "paper-cifar10": _paper(MODELS["cifar10"], 200, MethodTable()),
    "paper-svhn": _paper(MODELS["svhn"], 150, MethodTable()),
}
