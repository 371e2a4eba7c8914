"""What methods with one global model share: it goes out, comes back trained, and is averaged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fedbac_edge.lab.flat.method import Answer, Bench, Exchange, Holding, State, View, mean_by_role
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part


class SingleModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part, "model". A method adds `learn`, and changes what is different in it."""

    @property
    def opening(self) -> bool:
        """No round before the first one."""
        return False

    def exchanges(self: Exchange, round: int) -> tuple[Exchange]:
        """The model goes out and comes back once."""
        return (self,)

    def draws(self, holding: Holding) -> bool:
        """All clients that have samples."""
        return holding.labelled + holding.unlabelled > 0

    def begin(self, bench: Bench) -> State:
        """A fresh model, the same for every method."""
        return {"model": bench.model.init(bench.random("init", "model"))}

    def download(self, bench: Bench, state: State, holding: Holding, round: int) -> Mapping[str, Part]:
        """The global model."""
        return {"model": state["model"]}

    def fold(self, bench: Bench, state: State, answers: Mapping[int, Answer], round: int) -> State:
        """The weighted mean."""
        return mean_by_role(state, answers)

    def views(self, state: State) -> Mapping[str, View]:
        """The global model."""
        return {"model": (("model", 1.0),)}

    def architecture(self, bench: Bench, name: str) -> Architecture:
        """There is one network."""
        return bench.model
