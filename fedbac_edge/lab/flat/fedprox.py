"""FedProx (arXiv 1812.06127): FedAvg whose clients are held to the global model; see `fedavg`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fedbac_edge.lab.flat.fedavg import FedAvg


class FedProx(FedAvg, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mu`: weight of the proximal term mu/2 ||w - w_global||^2."""

    mu: Annotated[float, msgspec.Meta(gt=0)] = 0.01


METHOD = FedProx
