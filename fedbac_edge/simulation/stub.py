"""Devices that "train" by adding seeded noise: everything of a federation but the learning, fast and exact.

What they return depends on the job's seed and parts alone, as with real training on one path. For campaigns
that look for faults of the machinery, and for load.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedbac_edge.federation import Federation
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts import Schema, pack, unpack
from fedbac_edge.protocol.engine import Evaluated, Event, Job, Trained, TrainJob
from fedbac_edge.protocol.messages import Score
from fedbac_edge.randomness import generator

STEP = 0.01
"""Standard deviation of the noise."""
HOLDOUT = 10


def schema_of(federation: Federation) -> Schema:
    """Tensor name -> shape of one part of the federation's model."""
    model = federation.model
    return architecture(model.architecture, model.input, len(model.classes)).schema()


def perform(job: Job, blobs: Mapping[str, bytes], schema: Schema) -> Event:
    """Do a device's job. Raises KeyError when a part of it is not there, PartError when it is not one."""
    if not isinstance(job, TrainJob):
        return Evaluated(job.id, {k: score(blobs, parts, schema) for k, parts in job.candidates.items()})
    rng = generator(int(job.seed[0]), *job.seed[1:])
    parts = {}
    for role, hash in sorted(job.parts.items()):
        start = unpack(blobs[hash], schema)
        parts[role] = pack({name: t + STEP * rng.standard_normal(t.shape) for name, t in start.items()})
    return Trained(
        job=job.id,
        parts=parts,
        samples=int(rng.integers(10, 100)),
        data=100,
        loss=1.0,
        holdout=score(blobs, job.parts, schema),
        previous=score(blobs, job.previous, schema) if job.previous else None,
    )


def score(blobs: Mapping[str, bytes], hashes: Mapping[str, str], schema: Schema) -> Score:
    """A made-up score of a model; one and the same for the same parts."""
    for hash in hashes.values():
        unpack(blobs[hash], schema)
    rng = generator(9, *sorted(hashes.values()))
    return Score(HOLDOUT, int(rng.integers(0, HOLDOUT + 1)), float(rng.uniform(1, 3)) * HOLDOUT)
