"""Measures a running federation from outside: test accuracies that no machine of it ever sees.

After every cloud aggregation the served model of each server is scored on that server's test partition, by
the engine, while the next round already trains. Everything else of a row comes from the ledgers. A round's
row is written before the next aggregation is looked at, so that after a kill at most the two generations of
parts that the cloud keeps are without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from fedbac_edge.lab.engine import Engine, PoolError, Reply
from fedbac_edge.lab.fleet import traffic
from fedbac_edge.lab.fleet.grounds import Grounds, Plan
from fedbac_edge.lab.fleet.jobs import event_of, task
from fedbac_edge.lab.fleet.journal import Journal, Row, Server, measured, training_row
from fedbac_edge.lab.samples import Place
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.cloud.generations import of_view
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.events import Evaluated, EvaluateJob
from fedbac_edge.protocol.messages import RoundSummary
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import NO_SCORE, PartRef, Score


@dataclass
class _Measurement:
    """Scores on their way: server -> (job, on the test partition, on the hold-outs)."""

    summary: RoundSummary
    wall_s: float
    scores: dict[str, tuple[EvaluateJob, Future[Reply], Future[Reply] | None]]
    classes: dict[str, tuple[Future[Reply] | None, ...]]
    """After the last round: server -> on each class of the test partition; None where it has none."""


class Observer:
    """Call `look` after whatever happened; `finish` at the end."""

    def __init__(
        self,
        federation: Federation,
        grounds: Grounds,
        plan: Callable[[int], Plan],
        engine: Engine,
        stores: Mapping[str, Store],
        journal: Journal,
        tell: Callable[[Row], None],
    ) -> None:
        """`plan` says what each holds in a round; `stores` are those of the cloud and the gateways, by name;
        `tell` gets every new row."""
        self._federation, self._grounds, self._engine = federation, grounds, engine
        self._plan, self._stores, self._journal, self._tell = plan, stores, journal, tell
        self._method = method(federation)
        self._views = self._method.views or (self._method.served_view,)
        model = federation.model
        self._model = architecture(model.architecture, model.input, len(model.classes))
        devices = [name for names in federation.gateways.values() for name in names]
        self._counts = {name: grounds.counts(name) for name in devices}
        self._seen: RoundSummary | None = None
        self._pending: _Measurement | None = None
        self._began = time.perf_counter()

    def catch_up(self, cloud: Cloud) -> None:
        """After a restart: the rows of phases that ended before the kill and were not written."""
        state = cloud.state
        generations = [(state.previous, state.earlier), (state.parts, state.previous)]
        lines = self._stores["cloud"].ledger("summary")
        summaries = [msgspec.convert(line.detail, RoundSummary) for line in lines]
        newest = max((summary.round for summary in summaries if summary.phase == "train"), default=0)
        for summary in summaries:
            if self._journal.has(summary.round, summary.phase):
                continue
            if newest - summary.round > 1:
                raise PoolError(
                    f"metrics.jsonl lacks round {summary.round}, and the models of that round are gone"
                )
            self._note(summary, *generations[1 - (newest - summary.round)])
        self.finish()
        self._seen = cloud.state.last

    def look(self, cloud: Cloud) -> None:
        """Has a phase ended?"""
        last = cloud.state.last
        if last is None or last is self._seen:
            return
        if self._seen is None or (last.round, last.phase) != (self._seen.round, self._seen.phase):
            self._note(last, cloud.state.parts, cloud.state.previous)
        self._seen = last

    def finish(self) -> None:
        """Wait for what is being measured and write its row."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._write(self._training_row(pending))

    def _note(
        self, summary: RoundSummary, parts: Mapping[str, PartRef], previous: Mapping[str, PartRef]
    ) -> None:
        self.finish()
        now = time.perf_counter()
        wall_s, self._began = now - self._began, now
        if summary.phase == "train":
            self._pending = self._measure(summary, parts, previous, wall_s)
        else:
            self._write(self._evaluation_row(summary, wall_s))

    def _write(self, row: Row) -> None:
        self._journal.append(row)
        self._tell(row)

    def _measure(
        self,
        summary: RoundSummary,
        parts: Mapping[str, PartRef],
        previous: Mapping[str, PartRef],
        wall_s: float,
    ) -> _Measurement:
        blobs, plan = self._stores["cloud"].blobs, self._plan(summary.round)
        scores = {}
        classes: dict[str, tuple[Future[Reply] | None, ...]] = {}
        for server, site in sorted(summary.sites.items()):
            views = {
                number: {
                    role: ref.hash
                    for role, ref in of_view(self._method, view, parts, previous, site.cluster).items()
                }
                for number, view in enumerate(self._views)
            }
            names = {number: view.name for number, view in enumerate(self._views)}
            job = EvaluateJob(id=f"measure-{summary.round}", candidates=views, views=names)

            def score(place: Place, job: EvaluateJob = job) -> Future[Reply]:
                return self._engine.put(task(job, blobs, self._grounds.run, holdout=place))

            held = plan.held[server]
            scores[server] = (job, score(plan.test[server]), score(held) if len(held) else None)
            if summary.round >= self._federation.rounds:
                cut = self._grounds.per_class(plan.test[server])
                classes[server] = tuple(score(place) if len(place) else None for place in cut)
        return _Measurement(summary, wall_s, scores, classes)

    def _training_row(self, done: _Measurement) -> Row:
        summary = done.summary
        servers: dict[str, Server] = {}
        for server, (job, test, held) in done.scores.items():
            site = summary.sites[server]
            scores = {view.name: self._scores(test, job)[number] for number, view in enumerate(self._views)}
            accepted = self._stores[server].ledger("accepted", summary.round)
            servers[server] = measured(
                site.cluster,
                scores[self._views[0].name],
                NO_SCORE if held is None else self._scores(held, job)[0],
                site.asked,
                tuple(sorted({line.subject for line in accepted})),
                site.samples,
                site.void,
                scores if len(scores) > 1 else {},
                [
                    NO_SCORE if each is None else self._scores(each, job)[0]
                    for each in done.classes.get(server, ())
                ],
            )
        counts = self._counts
        needed = {device: self._method.needed(summary.round, *counts[device]) for device in counts}
        trained = {device: self._method.trained(summary.round, *counts[device]) for device in counts}
        cost = traffic.of_training(
            self._method,
            self._model,
            [_roles(servers[server].participants, trained) for server in sorted(servers)],
            [needed[device] for server in sorted(servers) for device in self._asked(server, summary.round)],
            [trained[device] for server in sorted(servers) for device in servers[server].participants],
            (summary.up_bytes, summary.down_bytes),
        )
        return training_row(summary.round, servers, cost, summary.seconds, done.wall_s)

    def _asked(self, server: str, round: int) -> list[str]:
        """The devices that a gateway asked; those that dropped out included."""
        return [
            name for line in self._stores[server].ledger("selected", round) for name in line.detail["asked"]
        ]

    def _evaluation_row(self, summary: RoundSummary, wall_s: float) -> Row:
        plan = self._plan(summary.round)
        last = summary.round >= self._federation.rounds
        cost = traffic.of_evaluation(
            self._method,
            self._model,
            self._federation,
            len(summary.sites),
            1 if last else self._method.clusters,
            sum(len(place) > 0 for place in plan.holdout.values()),
            (summary.up_bytes, summary.down_bytes),
        )
        return Row(
            round=summary.round,
            phase="evaluate",
            active_clusters=summary.active_clusters,
            moved=dict(summary.reassigned),
            traffic=cost,
            virtual_s=summary.seconds,
            wall_s=wall_s,
        )

    def _scores(self, future: Future[Reply], job: EvaluateJob) -> Mapping[int, Score]:
        """View's number -> score."""
        event = event_of(future, job, self._engine.stop)
        if not isinstance(event, Evaluated):
            raise PoolError(f"{job.id}: {getattr(event, 'reason', event)}")
        return event.scores


def _roles(devices: Iterable[str], trained: Mapping[str, Iterable[str]]) -> set[str]:
    """What the gateway of these devices reports."""
    return {role for device in devices for role in trained[device]}
