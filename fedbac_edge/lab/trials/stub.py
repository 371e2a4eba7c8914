"""Devices that "train" by adding seeded noise: everything of a federation but the learning, fast and exact.

What they return depends on the job's seed and parts alone, as with real training on one path. For campaigns
that look for faults of the machinery, and for load.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedbac_edge.methods import method
from fedbac_edge.parts.part import Schema, pack, unpack
from fedbac_edge.protocol.events import Evaluated, Event, Job, Trained, TrainJob
from fedbac_edge.protocol.gateway import gate
from fedbac_edge.randomness import generator
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import Score

STEP = 0.01
"""Standard deviation of the noise."""
HOLDOUT = 10


def perform(
    job: Job, blobs: Mapping[str, bytes], federation: Federation, labelled: int = 100, unlabelled: int = 0
) -> Event:
    """Do the job of a device with so many samples. Raises KeyError when a part of it is not there, PartError
    when it is not one.
    """
    schemas, used = gate.schemas(federation), method(federation)
    if not isinstance(job, TrainJob):
        return Evaluated(job.id, {k: score(blobs, parts, schemas) for k, parts in job.candidates.items()})
    rng = generator(int(job.seed[0]), *job.seed[1:])
    parts = {}
    for role in sorted(used.trained(job.round, labelled + unlabelled, unlabelled)):
        start = unpack(blobs[job.parts[role]], schemas[role])
        parts[role] = pack({name: t + STEP * rng.standard_normal(t.shape) for name, t in start.items()})
    with_labels = min(labelled, int(rng.integers(10, 100)))
    return Trained(
        job=job.id,
        parts=parts,
        samples=with_labels + unlabelled,
        data=labelled + unlabelled,
        loss=1.0,
        holdout=score(blobs, job.parts, schemas),
        previous=score(blobs, job.previous, schemas) if job.previous else None,
        unlabelled=unlabelled,
    )


def score(blobs: Mapping[str, bytes], hashes: Mapping[str, str], schemas: Mapping[str, Schema]) -> Score:
    """A made-up score of a model; one and the same for the same parts."""
    for role, hash in hashes.items():
        unpack(blobs[hash], schemas[role])
    rng = generator(9, *sorted(hashes.values()))
    return Score(HOLDOUT, int(rng.integers(0, HOLDOUT + 1)), float(rng.uniform(1, 3)) * HOLDOUT)
