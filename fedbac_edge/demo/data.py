"""Data and description of a demonstration: Fashion-MNIST, cut over its devices, and federation.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fedbac_edge.datasets import fashion, shards, sources
from fedbac_edge.datasets.annotation import annotate
from fedbac_edge.datasets.partition import PartitionError, dirichlet
from fedbac_edge.datasets.samples import Samples
from fedbac_edge.datasets.subset import subset
from fedbac_edge.federation_file import reading, starters
from fedbac_edge.federation_file.template import render
from fedbac_edge.host.files import write_bytes
from fedbac_edge.settings.federation import Federation

if TYPE_CHECKING:
    from fedbac_edge.demo.settings import Settings


def prepare(settings: Settings) -> tuple[Federation, str]:
    """Write shards and federation.toml; returns the federation and the partition's hash.

    Raises DataError without Fashion-MNIST, PartitionError for a cut that leaves a device empty.
    """
    federation = reading.check(described(settings))
    model = federation.model
    train = _draw(federation, "train", settings.samples, settings.seed)
    test = _draw(federation, "test", settings.test_samples, settings.seed)
    split = None
    if settings.method == "hassle":
        split = annotate(
            train.y,
            clients=settings.gateways * settings.devices,
            setting=settings.annotation,
            share=settings.labels,
            alpha=settings.alpha_client,
            seed=settings.seed,
        )
        cut = split.partition(settings.gateways, train.y, test.y, len(model.classes))
    else:
        cut = dirichlet(
            train.y,
            test.y,
            servers=settings.gateways,
            clients=settings.devices,
            alpha_server=settings.alpha_server,
            alpha_client=settings.alpha_client,
            seed=settings.seed,
            classes=len(model.classes),
            allow_tiny=settings.allow_tiny,
        )
    about = {"data": fashion.NAME, "classes": list(model.classes), "samples": [len(train), len(test)]}
    written = shards.write(settings.data, cut, train, test, about, split)
    empty = [shard.device for shard in written if shard.device and not shard.samples]
    if empty:
        raise PartitionError(
            f"seed {settings.seed} leaves {', '.join(empty)} without samples: take another --seed"
        )
    write_bytes(render(federation).encode(), settings.federation)
    return federation, cut.digest if split is None else split.digest


def _draw(federation: Federation, split: sources.Split, count: int, seed: int) -> Samples:
    model = federation.model
    every = sources.load(fashion.folder(), classes=model.classes, input_shape=model.input, split=split)
    return subset(every, count, seed, "subset", split)


def described(settings: Settings) -> Federation:
    """The preset with the options of this demonstration."""
    preset = starters.DEMOS[settings.method]("demo")
    rate = preset.training.learning_rate if settings.learning_rate is None else settings.learning_rate
    return msgspec.structs.replace(
        preset,
        rounds=settings.rounds,
        seed=settings.seed,
        training=msgspec.structs.replace(preset.training, learning_rate=rate),
        gateways=starters.roster(settings.gateways, settings.devices),
    )
