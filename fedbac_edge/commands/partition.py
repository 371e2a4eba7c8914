"""`fedbac partition`: cut a data set over gateways and devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbac_edge.commands.failures import Misconfigured, explained
from fedbac_edge.commands.options import FILE

if TYPE_CHECKING:
    from fedbac_edge.commands.shards import Shard

POSITIVE = click.IntRange(1)


@click.command()
@click.option(
    "--data", required=True, help="A data set's folder or archive, or a name: fashion-mnist, mnist ..."
)
@click.option("--test", "test_data", help="Test data, where --data is a single file without any.")
@click.option("--federation", type=FILE, help="Take classes and image size from this federation.toml.")
@click.option("--gateways", type=POSITIVE, default=2, show_default=True)
@click.option("--devices", type=POSITIVE, default=4, show_default=True, help="Per gateway.")
@click.option(
    "--alpha-server", type=float, default=0.5, show_default=True, help="Smaller: sites differ more."
)
@click.option("--alpha-client", type=float, default=0.5, show_default=True, help="The same inside a site.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option(
    "--form",
    type=click.Choice(["per-server", "per-class", "planted"]),
    default="per-server",
    show_default=True,
    help="How the proportions are drawn; it belongs in every result.",
)
@click.option("--groups", type=POSITIVE, help="Number of equal groups of gateways, for the form planted.")
@click.option("--samples", type=POSITIVE, help="Draw only so many training samples.")
@click.option("--test-samples", type=POSITIVE, help="Draw only so many test samples.")
@click.option("--allow-tiny", is_flag=True, help="Accept sites with fewer than 100 test samples.")
@click.option("--out", type=FILE, required=True, help="Folder to write; an earlier partition is replaced.")
def partition(
    data: str,
    test_data: str | None,
    federation: Path | None,
    samples: int | None,
    test_samples: int | None,
    out: Path,
    gateways: int,
    devices: int,
    seed: int,
    **options: Any,
) -> None:
    """Cut a data set over gateways and devices by the two-level Dirichlet split.

    \b
    Example:
      fedbac partition --data fashion-mnist --gateways 2 --devices 4 --seed 1 --out shards
    writes shards/gw1/dev-1-1.npz ... for `fedbac-agent join --data`, and shards/gw1/test.npz.
    """
    with explained():
        from fedbac_edge import config
        from fedbac_edge.commands import presets, shards
        from fedbac_edge.datasets import official, sources
        from fedbac_edge.datasets.partition import dirichlet
        from fedbac_edge.simulation.presets import MODELS

        place = official.locate(data) if data in official.DATA_SETS else Path(data)
        model = MODELS.get(data, presets.FASHION_MODEL)
        if federation is not None:
            model = config.load(federation).model
        if test_data is None and place.is_file() and place.suffix in (".npz", ".mat"):
            raise Misconfigured(f"{place} holds no test set of its own: give one with --test FILE")
        train = sources.load(place, classes=model.classes, input_shape=model.input)
        test = sources.load(test_data or place, classes=model.classes, input_shape=model.input, split="test")
        train = shards.subset(train, samples, seed, "train")
        test = shards.subset(test, test_samples, seed, "test")
        cut = dirichlet(
            train.y,
            test.y,
            servers=gateways,
            clients=devices,
            seed=seed,
            classes=len(model.classes),
            **options,
        )
        about = {"data": data, "classes": list(model.classes), "samples": [len(train), len(test)]}
        try:
            written = shards.write(out, cut, train, test, about)
        except shards.Occupied as error:
            raise Misconfigured(str(error)) from error
    _tell(written, out, cut.digest)


def _tell(written: list[Shard], out: Path, digest: str) -> None:
    """The table (one column per class), the roster, the hash."""
    classes = len(written[0].per_class)
    click.echo(f"{'':16}{'samples':>8}  per class " + "".join(f"{c:>6}" for c in range(classes)))
    for shard in written:
        name = f"{shard.gateway} {shard.device or 'test'}"
        click.echo(f"{name:16}{shard.samples:>8}            " + "".join(f"{n:>6}" for n in shard.per_class))
    empty = [shard.device for shard in written if shard.device and not shard.samples]
    if empty:
        click.echo(f"without samples, so without a file: {', '.join(empty)}")
    click.echo("\nfor federation.toml:\n[gateways]")
    for gateway in dict.fromkeys(shard.gateway for shard in written):
        members = [s.device for s in written if s.gateway == gateway and s.device and s.samples]
        click.echo(f"{gateway} = [" + ", ".join(f'"{device}"' for device in members) + "]")
    click.echo(f"\nwrote {out}; partition {digest}")
