"""What a method is to the laboratory: what the server keeps, what a client gets, learns and sends back.

The server's whole memory is a mapping of named parts, so that a run can be stored and resumed; clients keep
nothing between rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec
import numpy as np

from fedbac_edge.datasets.samples import Samples
from fedbac_edge.lab.flat.study import METHODS, Option, StudyError, Training
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.aggregation import weighted_mean
from fedbac_edge.parts.part import Part
from fedbac_edge.randomness import generator
from fedbac_edge.settings import explain
from fedbac_edge.vocabulary.training import Backend, Normalisation

State = Mapping[str, Part]
"""All that the server knows, by name."""
View = tuple[tuple[str, float], ...]
"""A served model: (name in the state, coefficient of its logits)."""


@dataclass(frozen=True)
class Holding:
    """How much a client has; `number` from 0."""

    number: int
    labelled: int
    unlabelled: int


@dataclass(frozen=True)
class Client:
    """A client with its samples; every label of `unlabelled` is UNLABELLED."""

    number: int
    labelled: Samples
    unlabelled: Samples


@dataclass(frozen=True)
class Bench:
    """What every client knows: the network, how pixels are scaled, how long and how fast to train."""

    model: Architecture
    normalisation: Normalisation
    training: Training
    rounds: int
    seed: int
    backend: Backend | None = None

    def random(self, *purpose: str | int) -> np.random.Generator:
        """A generator of its own for each purpose, the same in every process."""
        return generator(self.seed, "semi", *purpose)


@dataclass(frozen=True)
class Answer:
    """What a client sends: parts, what each weighs in the mean; its loss and optimiser steps as figures."""

    parts: Mapping[str, Part]
    weights: Mapping[str, float]
    loss: float
    steps: int


class Exchange(Protocol):
    """Once to the round's clients and back. Most methods are their own and only one."""

    def download(self, bench: Bench, state: State, holding: Holding, round: int) -> Mapping[str, Part]:
        """What the server sends to this client."""
        ...

    def learn(self, bench: Bench, parts: Mapping[str, Part], client: Client, round: int) -> Answer:
        """A client's work: a function of its arguments alone."""
        ...

    def fold(self, bench: Bench, state: State, answers: Mapping[int, Answer], round: int) -> State:
        """The server's memory after it: client number -> answer, ascending."""
        ...


class Method(Protocol):
    """A method. `opening` is true when a round 0 comes before the first round."""

    @property
    def opening(self) -> bool: ...  # noqa: D102

    def exchanges(self, round: int) -> Sequence[Exchange]:
        """What a round is made of, all with the same clients."""
        ...

    def draws(self, holding: Holding) -> bool:
        """May this client be drawn?"""
        ...

    def begin(self, bench: Bench) -> State:
        """The server's memory at the start."""
        ...

    def views(self, state: State) -> Mapping[str, View]:
        """The served models by name; the first one is the method's."""
        ...

    def architecture(self, bench: Bench, name: str) -> Architecture:
        """The network that a part of the state belongs to."""
        ...


def mean_by_role(state: State, answers: Mapping[int, Answer]) -> dict[str, Part]:
    """Each role's weighted mean over the clients that sent it; a role that no client sent stays as it is."""
    folded = dict(state)
    for role in dict.fromkeys(role for answer in answers.values() for role in answer.parts):
        sent = [answer for _, answer in sorted(answers.items()) if role in answer.parts]
        mean = weighted_mean((answer.parts[role], answer.weights[role]) for answer in sent)
        if mean is not None:
            folded[role] = mean
    return folded


def method_of(name: str, options: Mapping[str, Option]) -> Method:
    """The method of this name with its options. Raises StudyError naming the option that it does not have."""
    kind = _kind(name)
    try:
        made = cast(Method, msgspec.convert(dict(options), kind, strict=False))
    except msgspec.ValidationError as error:
        # A rule of the method's own is a sentence already.
        why = str(error) if error.__cause__ else explain.explain(error, dict(options), kind)
        options_are = ", ".join(kind.__struct_fields__)
        raise StudyError(
            f"{name}: {why}" if options_are in why else f"{name}: {why}; its options are: {options_are}"
        ) from error
    return made


def _kind(name: str) -> type[msgspec.Struct]:
    """Methods are imported when they are asked for: some need torch."""
    import importlib

    if name not in METHODS:
        raise StudyError(f"no method is called {name!r}; there are: {', '.join(METHODS)}")
    module = importlib.import_module(f"fedbac_edge.lab.flat.{name}")
    kind: type[msgspec.Struct] = module.METHOD
    return kind
