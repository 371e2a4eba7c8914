"""`fedbac partition`: cut a data set over gateways and devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbac_edge.commands.failures import Misconfigured, explained
from fedbac_edge.commands.options import FILE, given, labels_option

if TYPE_CHECKING:
    from fedbac_edge.datasets.shards import Shard

POSITIVE = click.IntRange(1)


@click.command()
@click.option(
    "--data", required=True, help="A data set's folder or archive, or a name: fashion-mnist, mnist ..."
)
@click.option(
    "--test",
    "test_data",
    help="Test data, where --data is a single file without any. Of a folder of pictures a fifth is "
    "set apart for the test, unless this is given.",
)
@click.option("--federation", type=FILE, help="Take classes and image size from this federation.toml.")
@click.option("--gateways", type=click.IntRange(1, 999), default=2, show_default=True)
@click.option("--devices", type=click.IntRange(1, 9999), default=4, show_default=True, help="Per gateway.")
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
@click.option(
    "--annotation",
    metavar="SETTING",
    help="Leave labels out: default (1 of 20 devices fully labelled, 9 in part, 10 not), PL, LPL, UPL, LU, "
    "ALL, or numbers of fully labelled, partially labelled and unlabelled devices: 2/2/4.",
)
@labels_option("With --annotation: samples that keep their label, 0.1 or 10%.  [default: 0.1]", default=None)
@click.option("--alpha", type=float, help="With --annotation: smaller: devices differ more.  [default: 0.1]")
@click.option("--samples", type=POSITIVE, help="Use only this many training samples.")
@click.option("--test-samples", type=POSITIVE, help="Use only this many test samples.")
@click.option("--allow-tiny", is_flag=True, help="Accept sites with fewer than 100 test samples.")
@click.option("--resize", is_flag=True, help="Scale pictures of another size, as `fedbac-agent join` does.")
@click.option("--out", type=FILE, required=True, help="Folder to write; an earlier partition is replaced.")
@click.pass_context
def partition(
    context: click.Context,
    /,
    data: str,
    test_data: str | None,
    federation: Path | None,
    samples: int | None,
    test_samples: int | None,
    out: Path,
    gateways: int,
    devices: int,
    seed: int,
    annotation: str | None,
    labels: float | None,
    alpha: float | None,
    resize: bool,
    **options: Any,
) -> None:
    """Split a data set over gateways and devices by the two-level Dirichlet split.

    With --annotation it is split over all devices at once, some labels are left out, and the devices are
    dealt to the gateways one by one.

    \b
    Example:
      fedbac partition --data fashion-mnist --gateways 2 --devices 4 --seed 1 --out shards
      fedbac partition --data cifar10 --gateways 4 --devices 5 --annotation default --labels 0.1 --out shards
    writes shards/gw1/dev-1-1.npz ... for `fedbac-agent join --data`, and shards/gw1/test.npz.
    """
    _check_options(context, annotation)
    with explained():
        from fedbac_edge.datasets import official, shards, sources
        from fedbac_edge.datasets.annotation import annotate
        from fedbac_edge.datasets.partition import dirichlet
        from fedbac_edge.datasets.subset import subset
        from fedbac_edge.federation_file import reading
        from fedbac_edge.settings.pictures import MODELS

        place = official.locate(data) if data in official.DATA_SETS else Path(data)
        model = MODELS.get(data, MODELS["fashion-mnist"])
        if federation is not None:
            model = reading.load(federation).model
        if test_data is None and place.is_file() and place.suffix in (".npz", ".mat"):
            raise Misconfigured(f"{place} holds no test set of its own: give one with --test FILE")
        train = sources.load(place, classes=model.classes, input_shape=model.input, resize=resize)
        passed = train.passed_over.sentence()
        classes, shape = model.classes, model.input
        if test_data is None:
            train, test = sources.load_test(place, train, classes=classes, input_shape=shape, resize=resize)
        else:
            test = sources.load(test_data, classes=classes, input_shape=shape, split="test", resize=resize)
        train = subset(train, samples, seed, "subset", "train")
        test = subset(test, test_samples, seed, "subset", "test")
        split = None
        if annotation is None:
            cut = dirichlet(
                train.y,
                test.y,
                servers=gateways,
                clients=devices,
                seed=seed,
                classes=len(model.classes),
                **options,
            )
        else:
            split = annotate(
                train.y,
                clients=gateways * devices,
                setting=annotation,
                share=0.1 if labels is None else labels,
                alpha=0.1 if alpha is None else alpha,
                seed=seed,
            )
            cut = split.partition(gateways, train.y, test.y, len(model.classes))
        about = {"data": data, "classes": list(model.classes), "samples": [len(train), len(test)]}
        try:
            written = shards.write(out, cut, train, test, about, split)
        except shards.Occupied as error:
            raise Misconfigured(str(error)) from error
    if passed:
        click.echo(f"in {place}, {passed}")
    _tell(written, out, cut.digest)


TWO_LEVELS, ANNOTATED = ("form", "groups", "alpha_server", "alpha_client", "allow_tiny"), ("labels", "alpha")
"""Options of the one cut and of the other."""


def _check_options(context: click.Context, annotation: str | None) -> None:
    """Options that would be passed over are refused."""
    others = ANNOTATED if annotation is None else TWO_LEVELS
    if flag := given(context, others):
        raise click.UsageError(f"{flag} goes {'only' if annotation is None else 'not'} with --annotation")


def _tell(written: list[Shard], out: Path, digest: str) -> None:
    """The table (one column per class), the roster, the hash."""
    classes = len(written[0].per_class)
    missing = any(shard.unlabelled for shard in written)
    head = f"{'unlabelled':>12}" if missing else ""
    click.echo(f"{'':16}{'samples':>8}{head}  per class " + "".join(f"{c:>6}" for c in range(classes)))
    for shard in written:
        name = f"{shard.gateway} {shard.device or 'test'}"
        bare = f"{shard.unlabelled:>12}" if missing else ""
        counts = "".join(f"{n:>6}" for n in shard.per_class)
        click.echo(f"{name:16}{shard.samples:>8}{bare}            {counts}")
    if missing:
        labelled = [sum(s.per_class[c] for s in written if s.device) for c in range(classes)]
        never = [str(c) for c, count in enumerate(labelled) if not count]
        click.echo(
            f"labels in all: {sum(labelled)}" + (f"; none of class {', '.join(never)}" if never else "")
        )
    empty = [shard.device for shard in written if shard.device and not shard.samples]
    if empty:
        click.echo(f"without samples, so without a file: {', '.join(empty)}")
    click.echo("\nfor federation.toml:\n[gateways]")
    for gateway in dict.fromkeys(shard.gateway for shard in written):
        members = [s.device for s in written if s.gateway == gateway and s.device and s.samples]
        click.echo(f"{gateway} = [" + ", ".join(f'"{device}"' for device in members) + "]")
    click.echo(f"\nwrote {out}; partition {digest}")
