from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from fedbac_edge.vocabulary.training import LocalTraining, Normalisation

VALID = {
    "epochs": 5,
    "batch_size": 64,
    "learning_rate": 0.01,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "clip_norm": 1.0,
    "l2": {"cluster": 1e-3},
}


def test_settings_survive_the_wire() -> None:
    settings = LocalTraining(**VALID)  # type: ignore[arg-type]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=LocalTraining) == settings
    assert settings.threads == 1


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"threads": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1e-9},
        {"weight_decay": float("inf")},
        {"clip_norm": 0.0},
        {"clip_norm": float("nan")},
        {"l2": {"cluster": -1.0}},
        {"l2": {"cluster": float("nan")}},
    ],
)
def test_values_outside_their_range_are_refused_however_they_arrive(change: dict[str, object]) -> None:
    values = {**VALID, **change}
    with pytest.raises(ValueError):
        LocalTraining(**values)  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(values), type=LocalTraining)


def test_unknown_and_missing_fields_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="nesterov"):
        msgspec.convert({**VALID, "nesterov": True}, LocalTraining)
    with pytest.raises(msgspec.ValidationError, match="epochs"):
        msgspec.convert({k: v for k, v in VALID.items() if k != "epochs"}, LocalTraining)


@pytest.mark.parametrize(
    ("mean", "std"),
    [((), ()), ((0.1,), (0.2, 0.2)), ((0.1,), (0.0,)), ((float("nan"),), (1.0,)), ((0.0,), (float("inf"),))],
)
def test_a_normalisation_that_cannot_be_applied_is_refused(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError):
        Normalisation(mean=mean, std=std)


def test_settings_are_importable_without_torch() -> None:
    code = "import sys, fedbac_edge.vocabulary.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
