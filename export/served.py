"""What is served: logits(x) = sum of coefficient * f(x; part) over parts of one architecture, or of several.

Fed-BAC serves 1 * global + 1 * cluster; an ensemble of two generations has coefficients 1/2; HASSLE adds
compact residual networks to its dual ones. Exporters need to know nothing else about the method that made
the parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedbac_edge.parts.part import has_variances

if TYPE_CHECKING:
    from fedbac_edge.models.description import Architecture
    from fedbac_edge.parts.part import Part

InputKind = Literal["uint8", "float"]
"""Raw images (N, height, width, channels), or normalised (N, channels, height, width)."""


class ExportError(ValueError):
    """The served model cannot be exported as it is; the sentence says what to change."""


class UnknownView(ExportError):
    """The method has no view of this name: wrong usage, where its base is a fault of the model."""


@dataclass(frozen=True)
class Term:
    """One part of the sum. `name` names its logits when they are asked for one by one.

    `architecture` None: that of the served model.
    """

    name: str
    part: Part
    coefficient: float = 1.0
    architecture: Architecture | None = None


@dataclass(frozen=True)
class ServedModel:
    """A sum of parts with everything a device needs to use it.

    `architecture` is that of the terms that name none, and says what goes in and what comes out of all.
    `mean` and `std` have one value per channel, in units of pixels scaled to 0..1: a float input is
    (pixel / 255 - mean) / std. `classes` are the labels in logit order. `metadata` is stored in the exported
    file as it is (federation, round, cluster, accuracy, version, ...).
    """

    architecture: Architecture
    terms: tuple[Term, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    metadata: dict[str, str] = field(default_factory=dict)

    def of(self, term: Term) -> Architecture:
        """The architecture of this term's part."""
        return self.architecture if term.architecture is None else term.architecture

    def groups(self) -> list[ServedModel]:
        """The same sum as served models of one architecture each, in the order of their first terms."""
        grouped: dict[Architecture, list[Term]] = {}
        for term in self.terms:
            grouped.setdefault(self.of(term), []).append(replace(term, architecture=None))
        return [replace(self, architecture=each, terms=tuple(terms)) for each, terms in grouped.items()]

    def singles(self) -> list[ServedModel]:
        """The same sum as served models of one term each."""
        return [
            replace(self, architecture=self.of(term), terms=(replace(term, architecture=None),))
            for term in self.terms
        ]

    def check(self) -> None:
        """Raise ExportError when parts, normalisation or class names do not fit the architecture."""
        if not self.terms:
            raise ExportError("a served model needs at least one part")
        names = [term.name for term in self.terms]
        if len(set(names)) != len(names):
            raise ExportError(f"the parts of a served model need different names, these are {names}")
        for term in self.terms:
            own = self.of(term)
            described = (tuple(self.architecture.input_shape), self.architecture.classes)
            if (tuple(own.input_shape), own.classes) != described:
                raise ExportError(
                    f"{term.name}: its network takes {tuple(own.input_shape)} and gives {own.classes} "
                    f"logits, the served model {described[0]} and {described[1]}"
                )
            schema = own.schema()
            if not math.isfinite(term.coefficient):
                raise ExportError(f"{term.name}: the coefficient {term.coefficient} is not a finite number")
            if set(term.part) != set(schema):
                raise ExportError(
                    f"{term.name}: expected the tensors {sorted(schema)}, found {sorted(term.part)}"
                )
            for name, shape in schema.items():
                if term.part[name].shape != tuple(shape):
                    raise ExportError(
                        f"{term.name}/{name}: expected shape {tuple(shape)}, found {term.part[name].shape}"
                    )
                if not np.isfinite(term.part[name]).all():
                    raise ExportError(f"{term.name}/{name} holds NaN or infinite weights")
            if not has_variances(term.part):
                raise ExportError(f"{term.name} holds a running variance below zero")
        channels = self.architecture.input_shape[0]
        if len(self.mean) != channels or len(self.std) != channels:
            raise ExportError(f"mean and std need one value for each of the {channels} channels")
        if not all(math.isfinite(value) for value in self.mean):
            raise ExportError(f"mean {self.mean} is not finite")
        if not all(math.isfinite(value) and value > 0 for value in self.std):
            raise ExportError(f"std must be positive in every channel, it is {self.std}")
        if len(self.classes) != self.architecture.classes or len(set(self.classes)) != len(self.classes):
            raise ExportError(
                f"the model has {self.architecture.classes} logits, so it needs as many different class "
                f"names, not {list(self.classes)}"
            )
