"""What the cloud remembers between events; stored as it is, one MessagePack value."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fedbac_edge.bandits import linucb
from fedbac_edge.protocol.collecting import Collecting
from fedbac_edge.protocol.events import ReleaseJob
from fedbac_edge.protocol.messages import RoundSummary, SiteSummary
from fedbac_edge.settings.round_rules import RoundRules
from fedbac_edge.signing.manifest import Vector
from fedbac_edge.vocabulary.terms import PartRef, Score

Phase = Literal["new", "gathering", "training", "evaluating", "finished"]


class Site(msgspec.Struct, kw_only=True):
    """What a gateway last said about itself."""

    online: bool = False
    ready: bool = False
    session: int = 0


class SiteReport(msgspec.Struct, kw_only=True):
    """A gateway's accepted report: parts by hash, what it weighs, and what it says for people."""

    parts: dict[str, str]
    weight: int
    summary: SiteSummary
    took: float
    """Seconds until it came, less those that the gateway waited in vain; makes the next deadline."""
    up: int
    down: int
    unlabelled: int = 0
    """Of `weight`, the samples without labels."""
    steps: dict[str, float] = {}
    """Group of roles that always travel together -> length of the step."""
    suspect: bool = False
    """Its step is far longer than the last ones: whether it counts is decided when the round closes."""
    shortened: dict[str, float] = {}
    """Role -> the factor that its step is multiplied by; 1 where it has none."""
    told: dict[str, Any] = {}
    """What the ledger says of it."""


class ReleasedModel(msgspec.Struct, kw_only=True):
    """One cluster's model in a release: its ONNX file by hash and size in bytes, and what it is made of."""

    sites: tuple[str, ...]
    hash: str
    size: int
    parts: dict[str, str]
    accuracy: float | None
    accuracy_round: int | None
    vectors: tuple[Vector, ...]


class Release(msgspec.Struct, kw_only=True):
    """A release: its number, the release that brought its models first, and the models by cluster."""

    number: int
    model: int
    round: int
    models: dict[int, ReleasedModel]


class CloudState(msgspec.Struct, kw_only=True):
    """All that the cloud remembers between events."""

    instance: str
    restored: str = ""
    """Not empty: this state came out of a backup, and a new generation of the instance is to begin."""
    former: tuple[str, ...] = ()
    """The instances of the generations before this one."""
    proven: tuple[str, ...] = ()
    """Gateways with a report that counted since this process started (`restoration`)."""
    session: int = 0
    contested: bool = False
    """The specification on the broker is not this one: another cloud's, or from before a change."""
    reclaimed: float = -1e9
    """When this cloud last put its own in that place."""
    repeated: dict[str, float] = {}
    """Part or site -> when what is retained of it was last published again for clients that missed it."""
    reclaims: float | None = None
    """When it does so next, because another process wrote there a moment after."""
    phase: Phase = "new"
    round: int = 0
    """Counted from 1 over all campaigns."""
    campaign: int = 1
    campaign_after: int | None = None
    """The rounds before this campaign, kept since `rounds` may change; None: the first, or as many each."""
    parts: dict[str, PartRef] = {}
    previous: dict[str, PartRef] = {}
    """The generation before, by part name."""
    earlier: dict[str, PartRef] = {}
    """The one before that: measuring the previous views of a method that looks back needs it."""
    clustering: linucb.Clustering | None = None
    placed: bool = False
    """Losses have decided where sites are, at least once."""
    served_by: dict[str, int] = {}
    """Site -> cluster of the round before, to know which sites have moved."""
    sites: dict[str, Site] = {}
    collecting: Collecting = Collecting()
    silent: tuple[str, ...] = ()
    """Who had not answered when the latest phase was closed."""
    reports: dict[str, SiteReport] = {}
    scores: dict[str, dict[int, Score]] = {}
    traffic: tuple[int, int] = (0, 0)
    """Evaluation phase: bytes up and down."""
    last_update: dict[str, int] = {}
    """Gateway -> round of its last update that counted, which its next task tells it."""
    norms: dict[str, list[float]] = {}
    """Lengths of the last steps, by group of roles that always travel together (`norm_gate`)."""
    refusals: dict[str, int] = {}
    """Gateway -> how often in a row its step was refused as too long."""
    seconds: list[float] = []
    """What the latest rounds took; those of devices that never answered do not count."""
    void: bool = False
    """The latest round brought no update at all."""
    voids: int = 0
    """How many rounds in a row did not."""
    unused: int = 0
    """Void rounds of this campaign: in a fleet they do not use it up."""
    began: float = 0.0
    last: RoundSummary | None = None
    timers: dict[str, float] = {}
    """Beside the deadline of what is collected."""
    founded: int = 0
    """When this cloud began to make releases, in seconds since 1970; 0: it makes none."""
    release_number: int = 0
    models_kept: int = 2
    """So many models have their files with the broker and in the store, as of the latest release."""
    releases: list[Release] = []
    """The latest ones, in order."""
    building: ReleaseJob | None = None
    rules: RoundRules | None = None
    """What the latest round began with, whatever has changed since."""
    build_again: bool = False
    """A release became due while one was being built: the next one follows at once."""

    @property
    def assignment(self) -> dict[str, int]:
        """pi: site -> cluster, of every site that ever took part."""
        return {} if self.clustering is None else self.clustering.assignment

    @property
    def opened(self) -> tuple[str, int] | None:
        """(kind, round) of the open phase: "train" or "evaluate"."""
        kind = {"training": "train", "evaluating": "evaluate"}.get(self.phase)
        return None if kind is None else (kind, self.round)
