"""What a round costs on the links, by two rules of counting; in bytes of float32 parts.

- `sent`: every network on every link and in each direction as it is really sent: the roles that its data need
  down to each asked device, those that they train up from each that answered, all roles down to every gateway
  and those that were trained up from it; in an evaluation phase the networks of all clusters go down.
- `single`: one network per link, 4 |w| (M + p N) each way and nothing for evaluations, as this family of
  papers counts.

What MQTT really carried, chunks and retries included, stands beside them as `published`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fedbac_edge.methods.method import Method
from fedbac_edge.models.catalog import float_count
from fedbac_edge.models.description import Architecture
from fedbac_edge.settings.federation import Federation

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
    method: Method,
    model: Architecture,
    reported: Sequence[Iterable[str]],
    asked: Sequence[Iterable[str]],
    answered: Sequence[Iterable[str]],
    published: tuple[int, int],
) -> Traffic:
    """One round, as roles per link: up from each gateway that took part, down to each asked device, and up
    from each that answered.
    """
    sizes, network = _sizes(method, model), FLOAT_BYTES * float_count(model)

    def total(links: Iterable[Iterable[str]]) -> int:
        return sum(sizes[role] for roles in links for role in roles)

    return Traffic(
        sent_up=total(reported) + total(answered),
        sent_down=total([sizes] * len(reported)) + total(asked),
        single_up=network * (len(reported) + len(answered)),
        single_down=network * (len(reported) + len(asked)),
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
    sizes, served = _sizes(method, model), {term.role for term in method.served_view.terms}
    once = sum(sizes[role.name] for role in method.roles if role.scope == "global" and role.name in served)
    each = sum(sizes[role.name] for role in method.roles if role.scope == "cluster" and role.name in served)
    links = sites + (0 if federation.evaluation == "test" else devices)
    return Traffic(
        sent_down=(once + each * candidates) * links,
        published_up=published[0],
        published_down=published[1],
    )


def _sizes(method: Method, model: Architecture) -> dict[str, int]:
    """Role -> bytes of its network."""
    networks = method.architectures(model)
    return {role: FLOAT_BYTES * float_count(network) for role, network in networks.items()}
