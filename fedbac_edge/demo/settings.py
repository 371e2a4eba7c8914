"""What a demonstration is told, and where its things lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DemoMethod = Literal["fedbac", "hassle"]
SAMPLES: dict[DemoMethod, int] = {"fedbac": 20_000, "hassle": 12_000}
"""What a method is shown with, unless options say otherwise."""


@dataclass(frozen=True)
class Settings:
    """Options of `fedbac demo`; samples are drawn from Fashion-MNIST before the cut."""

    out: Path
    method: DemoMethod = "fedbac"
    broker: Literal["auto", "mosquitto", "embedded"] = "auto"
    rounds: int = 15
    samples: int = 20_000
    test_samples: int = 10_000
    gateways: int = 2
    devices: int = 4
    alpha_server: float = 0.5
    alpha_client: float = 0.5
    seed: int = 1
    annotation: str = "2/2/4"
    """Of the method hassle: fully labelled, partially labelled and unlabelled devices."""
    labels: float = 0.1
    """Of the method hassle: share of the samples that keep their label."""
    learning_rate: float | None = None
    allow_tiny: bool = False
    keep: bool = False

    @property
    def data(self) -> Path:
        """Shards per device, test set per gateway."""
        return self.out / "data"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.out / "logs"

    @property
    def state(self) -> Path:
        """The stores of all tiers."""
        return self.out / "state"

    @property
    def models(self) -> Path:
        """ONNX files."""
        return self.out / "models"

    @property
    def federation(self) -> Path:
        """federation.toml."""
        return self.out / "federation.toml"
