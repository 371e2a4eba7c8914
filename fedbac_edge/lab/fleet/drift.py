"""Servers whose distribution changes in mid-run: from one round on, places exchange their data.

With `cut.drift_round` = R, `cut.drift_shift` = s and `cut.drift_servers` = n, server m < n holds in round R
and later what server (m + s) mod n held before: for training, as hold-out and for testing, device by device.
Nothing is announced. A device goes on saying how many samples it had at its start, as one would whose scene
has changed before its lens; what it trains on is counted as it is.
"""

from __future__ import annotations

from fedbac_edge.lab.fleet.grounds import Plan
from fedbac_edge.lab.scenario import Cut
from fedbac_edge.protocol.events import Job
from fedbac_edge.settings.federation import Federation


def round_of(job: Job) -> int:
    """The round that a job belongs to: machines call their jobs "train-12", "scoring-12"."""
    return int(job.id.rsplit("-", 1)[1])


def plan_at(plan: Plan, federation: Federation, cut: Cut, round: int) -> Plan:
    """Who holds which samples in `round`; `plan` is how they were laid out."""
    if cut.drift_round is None or round < cut.drift_round:
        return plan
    names = sorted(federation.gateways)
    changing = names[: cut.drift_servers or len(names)]
    source = {name: changing[(m + cut.drift_shift) % len(changing)] for m, name in enumerate(changing)} | {
        name: name for name in names[len(changing) :]
    }
    devices = {
        device: whose
        for name, other in source.items()
        for device, whose in zip(
            sorted(federation.gateways[name]), sorted(federation.gateways[other]), strict=True
        )
    }
    return Plan(
        train={device: plan.train[whose] for device, whose in devices.items()},
        holdout={device: plan.holdout[whose] for device, whose in devices.items()},
        held={name: plan.held[other] for name, other in source.items()},
        test={name: plan.test[other] for name, other in source.items()},
    )
