"""Reading `federation.toml`: TOML, types, then the rules that types cannot say."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from broker import access
from broker.topics import BadName, check_name
from fedbac_edge.bandits.linucb import initial_assignment
from fedbac_edge.bandits.thompson import participants
from fedbac_edge.methods import UnknownMethod, method
from fedbac_edge.models.catalog import LeNet, architecture
from fedbac_edge.models.description import UnknownArchitecture
from fedbac_edge.parts.robust import unsupported
from fedbac_edge.settings import explain
from fedbac_edge.settings.federation import Federation
from fedbac_edge.signing import keys


class FederationError(ValueError):
    """The federation's description is wrong; the message names the table, the field and the remedy."""


def load(path: Path) -> Federation:
    """Read and check a federation file. Raises FederationError naming the file and what to change."""
    try:
        text = path.read_text("utf-8-sig")  # editors on Windows begin with a byte order mark
    except FileNotFoundError:
        raise FederationError(
            f"there is no file {path}; `fedbac init --out {path}` writes one with every setting explained"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FederationError(f"{path} cannot be read: {error}") from error
    try:
        return parse(text)
    except FederationError as error:
        raise FederationError(f"{path}: {error}") from error


def parse(text: str) -> Federation:
    """A checked federation from TOML text; raises FederationError."""
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FederationError(f"not valid TOML: {error}") from error
    try:
        return check(msgspec.convert(written, Federation))
    except msgspec.ValidationError as error:
        raise FederationError(explain.explain(error, written, Federation)) from error


def check(federation: Federation) -> Federation:
    """Hold a well-typed federation to the rules that types cannot say; raises FederationError."""
    model = federation.model
    try:
        check_name(federation.name, "federation")
        for gateway, devices in federation.gateways.items():
            check_name(gateway, "gateway")
            if gateway in (access.CLOUD, access.OBSERVER):
                raise FederationError(f"[gateways] {gateway}: this name is taken; choose another")
            for device in devices:
                check_name(device, "device")
            if len(set(devices)) != len(devices):
                raise FederationError(f"[gateways] {gateway}: a device is listed twice")
        described = method(federation)
        network = architecture(model.architecture, model.input, len(model.classes))
        described.architectures(network)
    except (BadName, UnknownMethod, UnknownArchitecture) as error:
        raise FederationError(str(error)) from error
    if federation.training.backend in ("compiled", "fused") and not isinstance(network, LeNet):
        raise FederationError(
            f"[training] backend: {federation.training.backend!r} trains LeNets only; "
            f"for {model.architecture} say 'reference', or leave it at 'auto'"
        )
    _check_places(federation)
    if len(described.turns) > federation.training.epochs:
        raise FederationError(
            f"[training] epochs: {federation.method.name} trains in {len(described.turns)} turns, each of an "
            "epoch at least"
        )
    if federation.training.confidence and federation.training.unlabelled != "pseudo":
        own = "; that of HASSLE is [hassle] confidence" if federation.method.name == "hassle" else ""
        raise FederationError(
            "[training] confidence is a threshold of unlabelled = 'pseudo': set that too, or leave it "
            f"at 0{own}"
        )
    if federation.hassle is not None and federation.method.name != "hassle":
        raise FederationError(
            f"[hassle] belongs to [method] name = 'hassle', not to {federation.method.name!r}: remove it"
        )
    if federation.hassle and federation.hassle.pairing == "paper" and not federation.hassle.align_residuals:
        raise FederationError(
            "[hassle] pairing: 'paper' trains residuals in a round of their own, and align_residuals = false "
            "leaves them out: change one of the two"
        )
    if len(model.classes) < 2 or len(set(model.classes)) != len(model.classes):
        raise FederationError("[model] classes: at least two different names are needed")
    channels = model.input[0]
    if len(model.mean) != channels or len(model.std) != channels:
        raise FederationError(f"[model] mean and std need one number per channel ({channels})")
    if federation.eligibility == "roster" and not all(federation.gateways.values()):
        raise FederationError(
            "eligibility = 'roster' needs [gateways] with the devices of each gateway listed"
        )
    if federation.eligibility == "roster" and not federation.gateways:
        raise FederationError(
            "eligibility = 'roster' needs [gateways], for example: gw1 = ['dev-1', 'dev-2']"
        )
    asked = {
        g: participants(federation.selection.participation, len(d)) for g, d in federation.gateways.items()
    }
    if federation.eligibility == "roster" and min(asked.values()) < federation.deadlines.min_updates:
        few = min(asked, key=lambda gateway: asked[gateway])
        raise FederationError(
            f"[deadlines] min_updates = {federation.deadlines.min_updates}, but {few} asks only {asked[few]} "
            "of its devices in a round: every round would be void"
        )
    if federation.releases.key:
        try:
            keys.from_text(federation.releases.key)
        except keys.KeyFileError as error:
            raise FederationError(f"[releases] key: {error}") from error
    if federation.deadlines.deadline_min_s > federation.deadlines.deadline_max_s:
        raise FederationError("[deadlines] deadline_min_s is larger than deadline_max_s")
    if federation.eligibility == "roster":
        _check_rules(federation, asked)
    return federation


def _check_places(federation: Federation) -> None:
    """[method] places names gateways and clusters that there are."""
    clusters = method(federation).clusters
    for gateway, cluster in federation.method.places.items():
        if federation.gateways and gateway not in federation.gateways:
            raise FederationError(f"[method] places: {gateway!r} is not among [gateways]")
        if cluster >= clusters:
            raise FederationError(
                f"[method] places: {gateway} in cluster {cluster}, but there are {clusters}, counted from 0; "
                "raise [method] clusters or name another"
            )


def _check_rules(federation: Federation, asked: Mapping[str, int]) -> None:
    """The roster says how many updates a rule will see at most; `asked`: gateway -> devices of a round."""
    robust, described = federation.robust, method(federation)
    for gateway, count in sorted(asked.items()):
        if reason := unsupported(robust.edge_rule(), count):
            raise FederationError(f"[robust] edge: {gateway} asks {count} of its devices, but {reason}")
    seen = [len(federation.gateways)] if any(r.scope == "global" for r in described.roles) else []
    if described.placement != "argmin" and any(r.scope == "cluster" for r in described.roles):
        dealt = initial_assignment(federation.gateways, described.clusters, described.placement)
        places = dealt | federation.method.places
        seen.append(min(Counter(places.values()).values()))
    for count in seen:
        if reason := unsupported(robust.cloud_rule(), count):
            raise FederationError(f"[robust] cloud: a part is averaged over {count} sites, but {reason}")
