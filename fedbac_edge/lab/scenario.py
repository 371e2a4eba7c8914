"""What is simulated: a federation, how a data set is cut over it, and what goes wrong.

A scenario is one value that goes to the run's folder and back, so that a run can be resumed and repeated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

import msgspec

from fedbac_edge.datasets.partition import Form
from fedbac_edge.federation_file import reading
from fedbac_edge.lab.fleet.faults import NONE, Faults
from fedbac_edge.settings import explain
from fedbac_edge.settings.federation import Count, Federation, Fraction, Natural, Positive, Table


class ScenarioError(ValueError):
    """Settings that cannot be simulated; the message says which and what to do."""


class Cut(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which data, and how they are cut over clients: two-level Dirichlet, or an annotation split."""

    data: str
    """A known data set ("fashion-mnist"), or a path."""
    form: Form = "per-server"
    alpha_server: Positive = 0.1
    alpha_client: Positive = 0.5
    seed: int = 1
    groups: Natural | None = None
    """Only with the form "planted": servers of one group share a distribution."""
    samples: Natural | None = None
    """Training samples taken of the set, drawn by the seed; None: all."""
    test_samples: Natural | None = None
    allow_tiny: bool = False
    resize: bool = False
    """Scale pictures of another size, as a device that joins with --resize does."""
    annotation: str = "default"
    """Only with the form "annotation", cut with alpha_client: the labels (`datasets.annotation`)."""
    labelled: Fraction = 0.1
    """With that form: the share of all samples that keep their label."""
    unlabelled_devices: Count = 0
    """With the other forms: so many devices of each server, its last ones, have no labels."""
    drift_round: Natural | None = None
    """From this round on servers hold each other's data (see `drift`); None: never."""
    drift_shift: Natural = 1
    """Server m gets what server m + shift had."""
    drift_servers: Natural | None = None
    """Only the first so many exchange theirs; None: all."""


PLAIN = Cut(data="")
"""The defaults."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, but for where it is written and how many processes it takes."""

    preset: str = ""
    method: str = ""
    """The name under which it was asked for: "fixed" is a way to set up "fedbac"."""
    federation: Federation
    cut: Cut
    faults: Faults = NONE


def check(scenario: Scenario) -> Scenario:
    """Hold a scenario to what can be simulated; raises ScenarioError or FederationError."""
    federation = reading.check(scenario.federation)
    if federation.eligibility != "roster":
        raise ScenarioError(
            "a simulation has a fixed roster: give --servers and --clients, or set eligibility = 'roster' "
            "and list every gateway's devices"
        )
    if (changing := scenario.cut.drift_servers or 0) > len(federation.gateways):
        raise ScenarioError(f"cut.drift_servers = {changing} of {len(federation.gateways)} servers")
    cut = scenario.cut
    if cut.form == "annotation":
        if cut.drift_round:
            raise ScenarioError("cut.drift_round: an annotation split stays as it is")
        if cut.groups is not None:
            raise ScenarioError("cut.groups belongs to the form 'planted', not to 'annotation'")
        if cut.unlabelled_devices:
            raise ScenarioError(
                "cut.unlabelled_devices: an annotation split itself decides which devices have labels"
            )
    elif (cut.annotation, cut.labelled) != (PLAIN.annotation, PLAIN.labelled):
        raise ScenarioError(
            f"cut.annotation and cut.labelled belong to the form 'annotation', not to {cut.form!r}: "
            "say --form annotation too, or leave them out"
        )
    if federation.method.name == "hassle" and cut.form != "annotation" and not cut.unlabelled_devices:
        raise ScenarioError(
            "hassle learns from samples without labels, and this cut leaves none: say --form annotation, or "
            "--set cut.unlabelled_devices=N"
        )
    counts = {len(devices) for devices in federation.gateways.values()}
    if len(counts) != 1:
        raise ScenarioError(
            f"the partition gives every gateway equally many devices, [gateways] lists {sorted(counts)}"
        )
    if not all(cut.unlabelled_devices < count for count in counts):
        raise ScenarioError(
            f"cut.unlabelled_devices = {cut.unlabelled_devices}: a server keeps one with labels"
        )
    names = [*federation.gateways, *(d for devices in federation.gateways.values() for d in devices)]
    if len(set(names)) != len(names) or "cloud" in names:
        raise ScenarioError("in a simulation every gateway and device has a name of its own, not 'cloud'")
    return scenario


def roster(gateways: int, devices: int) -> dict[str, tuple[str, ...]]:
    """gw01: gw01-d01 ...: padded, so that the order of names is that of numbers."""
    wide, deep = max(2, len(str(gateways))), max(2, len(str(devices)))
    return {
        f"gw{m:0{wide}}": tuple(f"gw{m:0{wide}}-d{i:0{deep}}" for i in range(1, devices + 1))
        for m in range(1, gateways + 1)
    }


def with_roster(scenario: Scenario, gateways: int | None, devices: int | None) -> Scenario:
    """The scenario with a roster of so many gateways and devices at each; None: as many as it has."""
    present = scenario.federation.gateways
    gateways, devices = gateways or len(present), devices or max(map(len, present.values()), default=1)
    federation = msgspec.structs.replace(
        scenario.federation, gateways=roster(gateways, devices), eligibility="roster"
    )
    return msgspec.structs.replace(scenario, federation=federation)


def with_settings(scenario: Scenario, settings: Iterable[str]) -> Scenario:
    """The scenario with "table.key=value" set: tables of the federation's file, or "cut" for the data.

    Values are TOML; a bare word is a string. Raises ScenarioError naming the setting.
    """
    for setting in settings:
        path, separator, text = setting.partition("=")
        names = path.strip().split(".")
        if not separator or not all(names) or len(names) > 2:
            raise ScenarioError(f"--set {setting!r}: give table.key=value, for example training.epochs=2")
        target = "cut" if names[0] == "cut" else "federation"
        changed: dict[str, Any] = msgspec.to_builtins(getattr(scenario, target))
        inner = changed
        for name in names[:-1] if target == "federation" else []:
            if not isinstance(inner.get(name), dict):
                tables = ", ".join(["cut", *(key for key, value in inner.items() if isinstance(value, dict))])
                raise ScenarioError(f"--set {setting!r}: there is no table {name!r}; there are: {tables}")
            inner = inner[name]
        inner[names[-1]] = _value(text.strip())
        kind = type(getattr(scenario, target))
        try:
            new = msgspec.convert(changed, kind)
        except msgspec.ValidationError as error:
            told = explain.explain(error, changed, kind)
            raise ScenarioError(f"--set {setting!r}: {told}") from error
        scenario = msgspec.structs.replace(scenario, **{target: new})
    return scenario


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
