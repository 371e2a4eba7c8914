"""What a round costs on the links, by two rules of counting; in bytes of float32 parts.

- `sent`: every network on every link and in each direction as it is really sent: all roles of the method's
  model, down to each asked device and up from each that answered, and once each way for every gateway; in an
  evaluation phase the networks of all clusters go down.
- `single`: one network per link, 4 |w| (M + p N) each way and nothing for evaluations, as this family of
  papers counts.

What MQTT really carried, chunks and retries included, stands beside them as `published`.
"""

from __future__ import annotations

import msgspec

from fedbac_edge.federation import Federation
from fedbac_edge.methods.method import Method
from fedbac_edge.models.catalog import float_count
from fedbac_edge.models.description import Architecture

FLOAT_BYTES = 4


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes up (towards the cloud) and down."""

    sent_up: int = 0
    sent_down: int = 0
    single_up: int = 0
    single_down: int = 0
    published_up: int = 0
    published_down: int = 0


def of_training(
    method: Method, model: Architecture, sites: int, asked: int, answered: int, published: tuple[int, int]
) -> Traffic:
    """One round: `sites` gateways took part, `asked` devices got the parts and `answered` sent theirs."""
    network = FLOAT_BYTES * float_count(model)
    roles = len(method.roles)
    return Traffic(
        sent_up=roles * network * (sites + answered),
        sent_down=roles * network * (sites + asked),
        single_up=network * (sites + answered),
        single_down=network * (sites + asked),
        published_up=published[0],
        published_down=published[1],
    )


def of_evaluation(
    method: Method,
    model: Architecture,
    federation: Federation,
    sites: int,
    candidates: int,
    devices: int,
    published: tuple[int, int],
) -> Traffic:
    """One evaluation of `candidates` clusters: at the gateways, or at their `devices` with a hold-out."""
    network = FLOAT_BYTES * float_count(model)
    shared = sum(role.scope == "global" for role in method.roles)
    networks = shared + (len(method.roles) - shared) * candidates
    links = sites + (0 if federation.evaluation == "test" else devices)
    return Traffic(
        sent_down=networks * network * links,
        published_up=published[0],
        published_down=published[1],
    )
