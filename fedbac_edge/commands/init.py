"""`fedbac init`: a federation.toml to begin from."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from fedbac_edge.commands.failures import Misconfigured, explained
from fedbac_edge.commands.options import FILE

PRESET_NAMES = ("fleet", "demo", "hassle", "paper-fashion-mnist", "paper-cifar10", "paper-svhn")


def _size(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """(width, height) of "32x24"."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isdecimal() and 8 <= int(side) <= 1024 for side in sides):
        raise click.BadParameter(f"{text!r} is no size: say WIDTHxHEIGHT, 8 to 1024 each, for example 32x32")
    return int(sides[0]), int(sides[1])


@click.command()
@click.option("--out", type=FILE, default=Path("federation.toml"), show_default=True, help="File to write.")
@click.option("--name", help="Name of the federation.  [default: the preset's name]")
@click.option(
    "--preset",
    type=click.Choice(PRESET_NAMES),
    default="fleet",
    show_default=True,
    help="Preset to begin from.",
)
@click.option(
    "--data", type=FILE, help="Take classes, image size, mean and std from these: photos/<class>/*, or .npz."
)
@click.option(
    "--size",
    metavar="WxH",
    callback=_size,
    help="With --data: scale pictures to this size, for example 32x32; devices then join with --resize.",
)
@click.option(
    "--from",
    "source",
    type=FILE,
    help="Begin with the weights and settings of another federation: its cloud's --state, or what `fedbac "
    "export` wrote.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_context
def init(
    context: click.Context,
    out: Path,
    name: str | None,
    preset: str,
    data: Path | None,
    size: tuple[int, int] | None,
    source: Path | None,
    force: bool,
) -> None:
    """Write a federation.toml in which every setting is explained with its default.

    Beside it goes the private key that signs the federation's releases, if there is none yet.

    \b
    Example:
      fedbac init --out federation.toml --name orchard
      fedbac init --data photos/
      fedbac init --data photos/ --size 48x48
      fedbac init --from runs/orchard --data photos/ --name orchard-2
    """
    if source is not None and context.get_parameter_source("preset") is not ParameterSource.DEFAULT:
        raise click.UsageError("--from brings the settings of its federation: leave --preset out")
    with explained():
        import msgspec

        from fedbac_edge.commands.releasing import key_beside
        from fedbac_edge.commands.successor import earlier, succeeding, with_more_classes
        from fedbac_edge.datasets.labels import listing
        from fedbac_edge.datasets.survey import survey
        from fedbac_edge.federation_file import beginnings, reading
        from fedbac_edge.federation_file.starters import PRESETS
        from fedbac_edge.federation_file.template import render
        from fedbac_edge.host.files import write_bytes
        from fedbac_edge.signing import keys

        if out.exists() and not (force and out.is_file()):
            remedy = (
                "give another --out, or --force to replace it" if out.is_file() else "give a file as --out"
            )
            raise Misconfigured(f"{out} is there already; {remedy}")
        if not out.parent.is_dir():
            raise Misconfigured(f"there is no folder {out.parent}")
        weights = None if source is None else earlier(source)
        if weights is None:
            federation = PRESETS[preset](preset if name is None else name)
        else:
            federation = succeeding(weights, name)
        if size is not None and (data is None or not data.is_dir()):
            raise Misconfigured("--size goes with --data and a folder of pictures")
        if size is not None and weights is not None:
            raise Misconfigured("--from keeps the size of its federation's images: leave --size out")
        seen = None if data is None else survey(data, size)
        if seen is not None and weights is not None:
            federation = with_more_classes(federation, seen.classes)
        elif seen is not None:
            model = msgspec.structs.replace(
                federation.model, classes=seen.classes, input=seen.input, mean=seen.mean, std=seen.std
            )
            federation = msgspec.structs.replace(federation, model=model)
        reading.check(federation)
        if weights is not None:
            taken = beginnings.fitted(weights, federation)
            write_bytes(beginnings.encode(weights), beginnings.beside(out))
        key = _release_key(out)
        if key is not None:
            releases = msgspec.structs.replace(federation.releases, key=keys.to_text(key))
            federation = msgspec.structs.replace(federation, releases=releases)
        write_bytes(render(federation).encode(), out)
    click.echo(f"wrote {out}: {federation.name}, {federation.rounds} rounds")
    model = federation.model
    channels, height, width = model.input
    kind = f"{width}x{height}, {channels} channel{'s' if channels > 1 else ''}"
    classes = f"{len(model.classes)} classes ({listing(model.classes, 10)})"
    click.echo(f"its images: {kind}, {classes}" + ("" if data else "; others: --data, or edit [model]"))
    if weights is not None:
        new = [each for each in model.classes if each not in weights.federation.model.classes]
        grown = f"; new classes: {listing(tuple(new), 10)}" if new else ""
        click.echo(
            f"it begins with {len(taken)} networks of {weights.federation.name} after round {weights.round}"
            f"{grown}, kept in {beginnings.beside(out)} (stays beside {out.name} until the cloud has begun)"
        )
    if seen is not None and seen.scaled:
        click.echo(f"{data} holds other sizes: devices join with --resize, which scales to {width}x{height}")
    if seen is not None and seen.passed_over.count:
        click.echo(f"in {data}, {seen.passed_over.sentence()}")
    if key is not None:
        private = key_beside(out)
        click.echo(f"the key of its releases: {private} (keep it with the cloud)")
        public = keys.public_path(private)
        click.echo(f"for devices that serve: --release-key {public}, or --release-key {keys.to_text(key)}")
    click.echo(f"next: fedbac cloud run --federation {out}")


def _release_key(out: Path) -> bytes | None:
    """The public half of the key beside `out`, made now if need be; None where nothing can be signed."""
    import importlib.util

    from fedbac_edge.commands.releasing import key_beside
    from fedbac_edge.signing import keys

    if importlib.util.find_spec("cryptography") is None:
        return None
    private = key_beside(out)
    try:
        return (keys.load(private) if private.is_file() else keys.make(private)).public
    except keys.KeyFileError as error:
        raise Misconfigured(str(error)) from error
