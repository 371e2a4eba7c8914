"""The gateway's machine: who counts, who does not, and what everybody is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from fedbac_edge.bandits.thompson import Posterior
from fedbac_edge.lab.presets import preset
from fedbac_edge.parts.part import digest, pack, unpack
from fedbac_edge.protocol.events import (
    Evaluated,
    Fetched,
    JobFailed,
    Keep,
    Log,
    Resend,
    Send,
    Settle,
    Started,
)
from fedbac_edge.protocol.gateway import gate, norm_gate
from fedbac_edge.protocol.gateway.machine import GRACE_S, Gateway
from fedbac_edge.protocol.gateway.state import REPORT
from fedbac_edge.protocol.messages import (
    DeviceScores,
    DeviceStatus,
    DeviceUpdate,
    EvaluateTask,
    Forgotten,
    GatewayEvaluation,
    GatewayScores,
    GatewayStatus,
    GatewayTask,
    GatewayUpdate,
    Receipt,
    Spec,
    Taken,
    TaskReply,
    TrainTask,
)
from fedbac_edge.vocabulary.terms import Score
from fedbac_edge.vocabulary.training import LocalTraining

INSTANCE = "0badcafe"
TRAINING = LocalTraining(
    epochs=1, batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=0.0, clip_norm=1.0, l2={}
)


class Site:
    """gw1 with d1 and d2, in a round whose parts weigh 0 (global) and 1 (cluster) everywhere."""

    def __init__(self, federation: Any, bench: Any, part_of: Any, store_part: Any) -> None:
        self.federation, self.part_of = federation, part_of
        blobs: dict[str, bytes] = {}
        self.bench = bench(Gateway("gw1", blobs), blobs)
        self.parts = {
            "global": store_part(blobs, "global", part_of(federation, 0.0)),
            "cluster": store_part(blobs, "cluster-0", part_of(federation, 1.0)),
        }
        self.schema = gate.schemas(federation)["global"]
        self.bench.do(Started())
        self.bench.receive(Spec(federation=federation, instance=INSTANCE, software=""), "spec")
        for device in ("d1", "d2"):
            self.status(device)

    @property
    def state(self) -> Any:
        return self.bench.machine.state

    def status(
        self, device: str, state: str = "online", session: int = 1, samples: int = 100, holdout: int = 10
    ) -> Any:
        message = DeviceStatus(
            state=state, session=session, samples=samples, labelled=samples, holdout=holdout
        )
        return self.bench.receive(message, "status", "gw1", device)

    def task(self, round: int = 1, previous: bool = False, **change: Any) -> Any:
        task = GatewayTask(
            instance=INSTANCE,
            round=round,
            cluster=0,
            parts=self.parts,
            previous=self.parts if previous else {},
            training=TRAINING,
            deadline_s=100.0,
        )
        return self.bench.receive(msgspec.structs.replace(task, **change), "task", "gw1")

    def evaluation(self, round: int = 1, clusters: tuple[int, ...] = (0, 1)) -> Any:
        task = GatewayEvaluation(
            instance=INSTANCE, round=round, candidates=dict.fromkeys(clusters, self.parts), deadline_s=100.0
        )
        return self.bench.receive(task, "task", "gw1")

    def an_update(self, device: str, /, round: int = 1, value: float = 0.5, **change: Any) -> DeviceUpdate:
        update = DeviceUpdate(
            instance=INSTANCE,
            device=device,
            round=round,
            base={role: ref.hash for role, ref in self.parts.items()},
            parts=dict.fromkeys(self.parts, pack(self.part_of(self.federation, value))),
            samples=10,
            data=100,
            loss=1.0,
            holdout=Score(10, 5, 10.0),
            previous=None,
            received=0,
            seconds=1.0,
        )
        return msgspec.structs.replace(update, **change)

    def update(self, device: str, /, **change: Any) -> Any:
        return self.send_update(device, self.an_update(device, **change))

    def send_update(self, device: str, update: DeviceUpdate) -> Any:
        return self.bench.receive(update, "update", "gw1", device)

    def scores(self, device: str, /, round: int = 1, **change: Any) -> Any:
        scores = DeviceScores(
            instance=INSTANCE,
            device=device,
            round=round,
            scores={0: Score(10, 5, 10.0), 1: Score(10, 6, 9.0)},
            received=0,
            seconds=1.0,
        )
        return self.bench.receive(msgspec.structs.replace(scores, **change), "update", "gw1", device)

    def receipt(self, round: int = 1, kind: str = "train") -> Any:
        return self.bench.receive(Receipt(kind=kind, round=round, accepted=True), "receipt", "gw1")

    def answer(self) -> tuple[bool, str]:
        """The receipt that the latest event gave a device."""
        (receipt,) = self.bench.said(Receipt)
        return receipt.accepted, receipt.reason


@pytest.fixture
def make(federation_of: Any, bench: Any, part_of: Any, store_part: Any) -> Callable[..., Site]:
    def site(**tables: str) -> Site:
        tables = {"selection": "participation = 1.0", **tables}
        return Site(federation_of(**tables), bench, part_of, store_part)

    return site


@pytest.fixture
def site(make: Callable[..., Site]) -> Site:
    return make()


# --- the gate, reason by reason -------------------------------------------------------------------


def not_finite(site: Site) -> dict[str, Any]:
    part = site.part_of(site.federation, 0.5)
    part["conv1.bias"][2] = np.inf
    return {"parts": {**site.an_update("d1").parts, "global": pack(part)}}


def other_shape(site: Site) -> dict[str, Any]:
    part = site.part_of(site.federation, 0.5)
    part["conv1.bias"], part["conv2.bias"] = part["conv2.bias"], part["conv1.bias"]
    return {"parts": {**site.an_update("d1").parts, "global": pack(part)}}


def other_tensors(site: Site) -> dict[str, Any]:
    part = site.part_of(site.federation, 0.5)
    part["conv9.bias"] = part.pop("conv1.bias")
    return {"parts": {**site.an_update("d1").parts, "global": pack(part)}}


def other_base(site: Site) -> dict[str, Any]:
    return {"base": {**site.an_update("d1").base, "cluster": site.parts["global"].hash}}


GATE: dict[str, tuple[Callable[[Site], dict[str, Any]], str]] = {
    "not finite": (not_finite, "global: holds a number that is not finite"),
    "other shape": (other_shape, "global: conv1.bias: expected float32 (6,)"),
    "other tensors": (other_tensors, "global: expected the tensors"),
    "truncated": (
        lambda s: {"parts": {r: d[:-9_000] for r, d in s.an_update("d1").parts.items()}},
        "bytes of",
    ),
    "truncated by a byte": (
        lambda s: {"parts": {r: d[:-1] for r, d in s.an_update("d1").parts.items()}},
        "not read",
    ),
    "oversized": (
        lambda s: {"parts": {r: d + b" " * 9000 for r, d in s.an_update("d1").parts.items()}},
        "bytes of",
    ),
    "no safetensors": (
        lambda s: {"parts": {r: b"\xff" * len(d) for r, d in s.an_update("d1").parts.items()}},
        "cluster: not readable",
    ),
    "a role too few": (
        lambda s: {"parts": {"global": s.an_update("d1").parts["global"]}},
        "expected the roles cluster, global, found global",
    ),
    "a role too many": (
        lambda s: {"parts": {**s.an_update("d1").parts, "x": b""}},
        "found cluster, global, x",
    ),
    "no role": (lambda s: {"parts": {}}, "found none"),
    "other base": (other_base, "trained from another base: cluster"),
    "base too few": (lambda s: {"base": {}}, "trained from another base: cluster, global"),
    "base too many": (lambda s: {"base": {**s.an_update("d1").base, "x": "0" * 64}}, "another base: x"),
    "no samples": (lambda s: {"samples": 0}, "0 samples of 100"),
    "more samples than data": (lambda s: {"samples": 101}, "101 samples of 100"),
    "loss not a number": (lambda s: {"loss": float("nan")}, "a loss of nan"),
    "loss endless": (lambda s: {"loss": float("inf")}, "a loss of inf"),
    "hold-out inconsistent": (lambda s: {"holdout": Score(3, 4, 1.0)}, "4 of 3 right"),
    "hold-out not a number": (lambda s: {"holdout": Score(3, 2, float("nan"))}, "loss nan"),
    "hold-out negative": (lambda s: {"holdout": Score(3, 2, -1.0)}, "loss -1"),
    "hold-out huge": (lambda s: {"holdout": Score(10**13, 2, 1.0)}, "of 10000000000000 right"),
    "previous inconsistent": (lambda s: {"previous": Score(3, 4, 1.0)}, "4 of 3 right"),
    "another name": (lambda s: {"device": "d2"}, "names another device than the topic"),
    "an earlier federation": (lambda s: {"instance": "00000000"}, "another federation that had this name"),
    "a later round": (lambda s: {"round": 2}, "round 2 is not open here"),
    "an earlier round": (lambda s: {"round": 0}, "round 0 is not open here"),
}


@pytest.mark.parametrize("name", GATE)
def test_the_gate_refuses_with_a_receipt_and_a_ledger_line(site: Site, name: str) -> None:
    change, why = GATE[name]
    site.task()
    site.update("d1", **change(site))
    accepted, reason = site.answer()
    assert not accepted
    assert why in reason
    (line,) = site.bench.logged("refused")
    assert (line.subject, line.detail["why"]) == ("d1", reason)
    assert site.state.answers == {}
    assert site.bench.machine.timers() == {"deadline": 100.0}, "d2 may still answer"
    site.update("d2")
    assert site.answer() == (True, "")
    waits = name in ("a later round", "an earlier round")
    assert site.state.collecting.waiting == (("d1",) if waits else ())


def test_a_refusal_of_a_thousand_names_fits_in_a_receipt_and_the_ledger(site: Site) -> None:
    site.task()
    site.update("d1", parts={f"role-{i}": b"" for i in range(5_000)})
    (line,) = site.bench.logged("refused")
    assert len(line.detail["why"]) <= 400
    assert len(site.answer()[1]) <= 400


def test_a_device_that_was_not_asked_does_not_count(make: Callable[..., Site]) -> None:
    site = make(selection="participation = 0.5\nwarm_up = 9")
    site.task()
    (chosen,) = site.state.collecting.asked
    other = "d1" if chosen == "d2" else "d2"
    site.update(other)
    assert site.answer() == (False, "this device was not asked in this round")
    assert site.state.collecting.waiting == (chosen,)
    site.update("stranger")
    assert site.answer() == (False, "this device was not asked in this round")


def test_the_step_of_the_report_counts(make: Callable[..., Site]) -> None:
    """A device was away for 290 rounds: a step of 0.0604, and 0.00537 is usual. It was refused for ever."""
    site = make()
    site.task()
    site.update("d1", value=0.5)
    (told,) = site.bench.logged("accepted")
    usual = told.detail["norm"] * 0.00537 / 0.0604
    site.state.norms = {"cluster+global": [usual] * 200}
    site.update("d2", value=0.5)
    assert site.bench.said(Receipt) == []
    assert site.bench.logged("held")
    closed = site.bench.run_timers()
    (line,) = site.bench.logged("accepted", closed)
    assert line.subject == "d2"
    assert line.detail["shortened"]["global"] == pytest.approx(10 * 0.00537 / 0.0604)
    (report,) = site.bench.said(GatewayUpdate, closed)
    assert (report.answered, report.refused, report.samples) == (2, 0, 20)


def gross(site: Site, round: int = 1) -> list[Any]:
    """A round in which d1 is as usual and d2 is not; its close."""
    site.task(round)
    site.update("d1", round=round, value=0.5)
    site.state.norms = {"cluster+global": [1.0] * 200}
    site.update("d2", round=round, value=900.0)
    held = site.update("d2", round=round, value=900.0)  # the link says it again
    assert held == []
    return list(site.bench.run_timers())


def test_a_gross_step_is_refused_when_the_round_closes(make: Callable[..., Site]) -> None:
    site = make()
    closed = gross(site)
    receipts = site.bench.said(Receipt, closed)
    assert [receipt.accepted for receipt in receipts] == [False]
    assert "times the usual length; 1 refused in a row" in receipts[0].reason
    (report,) = site.bench.said(GatewayUpdate, closed)
    assert (report.answered, report.refused, report.samples) == (1, 1, 10)
    assert site.state.refusals == {"d2": 1}
    assert site.state.last_update == {"d1": 1}, "its next task tells d2 that the update did not count"
    gross(site, 2)
    assert site.state.refusals == {"d2": 2}


def test_alone_it_counts_but_not_at_its_length(make: Callable[..., Site]) -> None:
    """Otherwise the round would be void, and the next one too."""
    site = make()
    site.task()
    site.state.norms = {"cluster+global": [1.0] * 200}
    site.bench.now = 1.0
    site.update("d2", value=900.0)
    site.bench.now = 200.0
    closed = site.bench.run_timers()
    (report,) = site.bench.said(GatewayUpdate, closed)
    assert (report.answered, report.void) == (1, "")
    (line,) = site.bench.logged("accepted", closed)
    assert line.detail["shortened"]["global"] * line.detail["norm"] == pytest.approx(1.0)


def test_the_norm_gate_is_an_option(make: Callable[..., Site]) -> None:
    site = make(deadlines="norm_gate = false")
    site.state.norms = {"cluster+global": [1.0] * 50}
    site.task()
    site.update("d1", value=1000.0)
    assert site.answer() == (True, "")


def test_remembered_norms_are_bounded(site: Site) -> None:
    site.state.norms = {"cluster+global": [1.0] * norm_gate.HISTORY}
    site.task()
    site.update("d1", value=0.6)
    assert len(site.state.norms["cluster+global"]) == norm_gate.HISTORY


def test_sums_of_the_largest_claims_can_still_be_sent_and_read(site: Site) -> None:
    """What one device says, however large, must not make the site's report unreadable for the cloud."""
    most = 10**12
    site.status("d1", samples=most, holdout=most)
    site.status("d2", samples=most, holdout=most)
    site.task()
    for device in ("d1", "d2"):
        score = Score(most, most, 1e300)
        site.update(device, samples=most, data=most, holdout=score, previous=score, received=most)
    (report,) = site.bench.said(GatewayUpdate, site.bench.run_timers())
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=GatewayUpdate)
    assert again.data == 2 * most
    gate.check_score(Score(again.holdout.count // 2, 1, again.holdout.loss / 2))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(site.state), type=type(site.state)) == site.state


# --- a round --------------------------------------------------------------------------------------


def test_a_round_from_task_to_receipt(site: Site) -> None:
    site.task()
    assert site.bench.said(Taken) == [Taken(kind="train", round=1)]
    sends = site.bench.of(Send)
    tasks = {s.channel.device: s for s in sends if isinstance(s.message, TrainTask)}
    assert set(tasks) == {"d1", "d2"}
    assert tasks["d1"].key != tasks["d2"].key != ""
    assert tasks["d1"].message.deadline_s == pytest.approx(90.0), "less than its own, to have time to close"
    site.bench.now = 5.0
    site.update("d1", value=1.0, samples=30)
    assert Settle(tasks["d1"].key) in site.bench.actions
    site.update("d2", value=4.0, samples=10)
    assert site.bench.said(GatewayUpdate) == [], "closed by an event of its own, once the blobs are stored"
    (report,) = site.bench.said(GatewayUpdate, site.bench.run_timers())
    for role in ("global", "cluster"):
        average = unpack(report.parts[role], site.schema)
        assert all((tensor == (30 * 1.0 + 10 * 4.0) / 40).all() for tensor in average.values())
    assert (report.samples, report.data, report.asked, report.answered, report.refused) == (40, 200, 2, 2, 0)
    assert (report.seconds, report.waited, report.void) == (5.0, 0.0, "")
    assert report.holdout == Score(20, 10, 20.0)
    assert site.bench.machine.timers() == {}
    kept = site.bench.machine.kept()
    site.receipt()
    assert Settle(REPORT) in site.bench.actions
    assert site.bench.machine.kept() < kept, "the updates are no longer needed"


def test_the_average_does_not_depend_on_who_came_first(make: Callable[..., Site]) -> None:
    reports = []
    for order in (("d1", "d2"), ("d2", "d1")):
        site = make()
        site.task()
        rng = np.random.default_rng(1)
        parts = {
            device: pack({n: rng.standard_normal(s).astype(np.float32) for n, s in site.schema.items()})
            for device in ("d1", "d2")
        }
        for device in order:
            site.update(
                device, parts=dict.fromkeys(site.parts, parts[device]), samples=7 if device == "d1" else 13
            )
        reports += site.bench.said(GatewayUpdate, site.bench.run_timers())
    assert reports[0] == reports[1]


def test_the_deadline_closes_with_who_answered(site: Site) -> None:
    site.task()
    site.bench.now = 20.0
    site.update("d2")
    site.bench.now = 100.0
    closed = site.bench.run_timers()
    assert [line.subject for line in site.bench.logged("silent", closed)] == ["d1"]
    (report,) = site.bench.said(GatewayUpdate, closed)
    assert (report.answered, report.waited, report.void) == (1, 80.0, "")
    site.update("d1")
    assert site.answer() == (False, "round 1 is not open here"), "too late, and told so"


def test_nobody_answers_and_the_round_is_void(site: Site) -> None:
    site.task()
    site.bench.now = 100.0
    (report,) = site.bench.said(GatewayUpdate, site.bench.run_timers())
    assert (report.parts, report.samples, report.answered) == ({}, 0, 0)
    assert report.void == "0 updates of 2 asked, 1 needed"


def test_the_deadline_passes_while_the_parts_are_still_fetched(site: Site) -> None:
    data = site.bench.blobs.pop(site.parts["global"].hash)
    site.task()
    assert set(site.bench.machine.wanted()) == {site.parts["global"].hash}
    site.bench.now = 100.0
    (report,) = site.bench.said(GatewayUpdate, site.bench.run_timers())
    assert report.void
    site.bench.blobs[digest(data)] = data
    assert site.bench.do(Fetched(digest(data), len(data))) == []


def test_a_decline_is_an_answer_too(site: Site) -> None:
    site.task()
    reply = TaskReply(kind="train", round=1, accepted=False, reason="battery")
    site.bench.receive(reply, "reply", "gw1", "d1")
    (line,) = site.bench.logged("declined")
    assert (line.subject, line.detail["why"]) == ("d1", "battery")
    site.update("d2")
    (report,) = site.bench.said(GatewayUpdate, site.bench.run_timers())
    assert report.answered == 1
    for late in (
        reply,
        msgspec.structs.replace(reply, round=0),
        msgspec.structs.replace(reply, kind="evaluate"),
    ):
        assert site.bench.receive(late, "reply", "gw1", "d1") == []


@pytest.mark.parametrize("when", ["at once", "after the close", "after the cloud's receipt", "a round later"])
def test_an_update_said_again_gets_its_receipt_and_counts_once(site: Site, when: str) -> None:
    site.task()
    site.update("d1")
    if when != "at once":
        site.update("d2")
        site.bench.run_timers()
    if when in ("after the cloud's receipt", "a round later"):
        site.receipt()
    if when == "a round later":
        site.task(2)
    before = msgspec.msgpack.encode(site.state)
    site.update("d1", value=99.0)  # a namesake, or the same again: it is the same key
    assert site.answer() == (True, "")
    assert not site.bench.of(Keep)
    assert msgspec.msgpack.encode(site.state) == before


def test_an_update_said_again_after_its_device_was_scored_counted_all_the_same(site: Site) -> None:
    """What counts once, counts by kind: an evaluation in between does not make a liar of the receipt."""
    site.task()
    site.update("d1")
    site.update("d2")
    site.bench.run_timers()
    site.receipt()
    site.evaluation()
    site.scores("d1")
    site.update("d1")
    assert site.answer() == (True, "")


def test_known_stale_and_foreign_tasks(site: Site) -> None:
    site.task(2)
    before = msgspec.msgpack.encode(site.state)
    assert site.bench.said(TrainTask, site.task(2)) == []
    assert site.bench.said(Taken) == [Taken(kind="train", round=2)], "said again: it is taken"
    site.task(1)
    assert site.bench.logged("stale task")
    site.evaluation(1)
    assert site.bench.logged("stale task")
    site.task(3, instance="00000000")
    assert site.bench.logged("foreign task")
    assert msgspec.msgpack.encode(site.state) == before
    site.evaluation(2)
    assert site.bench.said(EvaluateTask), "the evaluation of a round comes after its training"


def test_a_newer_task_drops_the_open_round(site: Site) -> None:
    site.task(1)
    site.update("d1")
    site.task(2)
    settled = {action.key for action in site.bench.of(Settle)}
    assert settled >= {REPORT, "task:d2"}
    assert site.state.answers == {}
    site.update("d2", round=1)
    assert site.answer() == (False, "round 1 is not open here")


def test_a_gateway_without_specification_takes_no_task(bench: Any, federation_of: Any) -> None:
    gateway = bench(Gateway("gw1", {}))
    gateway.do(Started())
    task = GatewayEvaluation(instance=INSTANCE, round=1, candidates={}, deadline_s=1.0)
    gateway.receive(task, "task", "gw1")
    assert gateway.logged("foreign task")
    assert gateway.said(Taken) == []


def test_everybody_empty_is_closed_at_once(site: Site) -> None:
    for device in ("d1", "d2"):
        site.status(device, samples=0, holdout=0)
    site.task()
    (report,) = site.bench.said(GatewayUpdate)
    assert report.void == "0 updates of 0 asked, 1 needed"
    site.evaluation()
    (scores,) = site.bench.said(GatewayScores, site.bench.run_timers())
    assert scores.scores == {}


# --- presence -------------------------------------------------------------------------------------


def test_a_late_will_is_ignored_and_a_new_disk_is_not(site: Site) -> None:
    site.status("d1", session=5)
    site.status("d1", state="offline", session=4)
    assert site.state.members["d1"].online
    site.status("d1", session=1)  # a birth: the device lost its store and counts anew
    site.status("d1", state="offline", session=1)
    assert not site.state.members["d1"].online
    assert site.state.members["d1"].samples == 100, "what it has is still known"


def test_a_device_that_comes_back_gets_its_task_again_at_once(site: Site) -> None:
    site.task()
    site.status("d1", state="offline")
    assert site.bench.of(Resend) == []
    site.status("d1", session=2)
    assert site.bench.of(Resend) == [Resend("task:d1")]
    site.status("d1", session=2)
    assert site.bench.of(Resend) == [], "a repeated hello asks for nothing"


def test_a_device_that_is_gone_for_good_is_forgotten(site: Site) -> None:
    """Its posterior and all else go, the open round does not wait for it, and nobody is ready without it."""
    site.state.posteriors["d1"] = Posterior(5.0, 2.0)
    site.state.last_update["d1"] = site.state.refusals["d1"] = 3
    site.state.unrewarded = ("d1", "d2")
    site.task()
    site.bench.receive(Forgotten(), "status", "gw1", "d1")
    assert site.bench.of(Settle) == [Settle("task:d1")]
    assert [(line.kind, line.subject, line.round) for line in site.bench.of(Log)] == [("forgotten", "d1", 1)]
    assert [message.ready for message in site.bench.said(GatewayStatus)] == [False]
    state = site.state
    assert state.collecting.waiting == ("d2",)
    for learned in (state.members, state.posteriors, state.last_update, state.refusals):
        assert "d1" not in learned
    assert state.unrewarded == ("d2",)
    assert site.bench.receive(Forgotten(), "status", "gw1", "d1") == [], "it is not known any more"
    site.status("d1")
    assert site.state.members["d1"].online, "one of this name may come again"


def test_readiness_is_told_when_it_changes(bench: Any, federation_of: Any) -> None:
    gateway = bench(Gateway("gw1", {}))
    gateway.do(Started())
    gateway.receive(Spec(federation=federation_of(), instance=INSTANCE, software=""), "spec")
    told = []
    for device in ("d1", "stranger", "d2", "d2"):
        status = DeviceStatus(state="online", session=1, samples=1)
        gateway.receive(status, "status", "gw1", device)
        told.append([message.ready for message in gateway.said(GatewayStatus)])
    assert told == [[], [], [True], []]


def test_a_specification_of_another_federation_starts_over(site: Site) -> None:
    site.task()
    site.update("d1")
    site.bench.receive(Spec(federation=site.federation, instance=INSTANCE, software="newer"), "spec")
    assert site.state.answers, "the same federation, newer software: nothing is lost"
    site.bench.receive(Spec(federation=site.federation, instance="feedf00d", software=""), "spec")
    assert {action.key for action in site.bench.of(Settle)} == {REPORT, "task:d1", "task:d2"}
    assert (site.state.task, site.state.answers, site.state.posteriors) == (None, {}, {})
    assert set(site.state.members) == {"d1", "d2"}
    assert site.bench.machine.kept() == set()


# --- evaluation -----------------------------------------------------------------------------------


def test_scores_are_summed_over_the_devices(site: Site) -> None:
    site.evaluation()
    (task, _) = site.bench.said(EvaluateTask)
    assert set(task.candidates) == {0, 1}
    site.scores("d1")
    assert site.answer() == (True, "")
    site.scores("d1", scores={0: Score(1, 1, 1.0), 1: Score(1, 1, 1.0)})
    assert site.answer() == (True, ""), "again: counted once"
    site.scores("d2")
    (report,) = site.bench.said(GatewayScores, site.bench.run_timers())
    assert report.scores == {0: Score(20, 10, 20.0), 1: Score(20, 12, 18.0)}
    assert report.answered == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"round": 2}, "evaluation of round 2 is not open"),
        ({"instance": "00000000"}, "another federation"),
        ({"device": "d2"}, "was not asked"),
        ({"scores": {0: Score(10, 5, 1.0)}}, "not those of the clusters"),
        (
            {"scores": {0: Score(1, 1, 1.0), 1: Score(1, 1, 1.0), 2: Score(1, 1, 1.0)}},
            "not those of the clusters",
        ),
        ({"scores": {0: Score(10, 5, 1.0), 1: Score(10, 11, 1.0)}}, "11 of 10 right"),
        ({"scores": {0: Score(10, 5, float("inf")), 1: Score(10, 1, 1.0)}}, "loss inf"),
    ],
)
def test_scores_that_do_not_count(site: Site, change: dict[str, Any], why: str) -> None:
    site.evaluation()
    site.scores("d1", **change)
    accepted, reason = site.answer()
    assert not accepted
    assert why in reason
    assert site.state.scores == {}


def test_an_update_is_no_answer_to_an_evaluation(site: Site) -> None:
    site.task(1)
    site.evaluation(1)
    site.update("d1", round=1)
    assert site.answer() == (False, "round 1 is not open here")
    assert site.state.collecting.waiting == ("d1", "d2")


# --- the laboratory: rewards on the gateway's own data, and the paper's rounds ----------------------


def lab_round(site: Site, number: int, accuracy: float | None, updates: int = 2) -> list[Any]:
    """A round whose model is scored, or whose scoring fails (None); the rewards that it gave."""
    site.task(number, previous=True)
    for device in ("d1", "d2")[:updates]:
        site.update(device, round=number)
    site.bench.now += 0 if updates == 2 else 100
    actions = site.bench.run_timers()
    if updates:
        job = f"scoring-{number}"
        if accuracy is None:
            actions += site.bench.do(JobFailed(job, "the worker died"))
        else:
            actions += site.bench.do(Evaluated(job, {0: Score(100, round(100 * accuracy), 1.0)}))
    site.receipt(number)
    return [line.detail["change"] for line in site.bench.logged("reward", actions)]


@pytest.mark.parametrize("what", ["a failed scoring job", "a void round"])
def test_a_reward_never_spans_two_rounds(make: Callable[..., Site], what: str) -> None:
    site = make(top='evaluation = "test"')
    assert lab_round(site, 1, 0.1) == []
    assert lab_round(site, 2, 0.2) == [pytest.approx(0.1)]
    assert lab_round(site, 3, None, updates=2 if what == "a failed scoring job" else 0) == []
    assert lab_round(site, 4, 0.8) == [], "the change since round 2 is no reward for round 4"
    assert lab_round(site, 5, 0.9) == [pytest.approx(0.1)]


@pytest.mark.parametrize("name", ["paper/fashion-mnist-0.1", "paper/cifar10-0.5", "paper/svhn-scaling"])
def test_in_the_paper_a_step_of_eleven_times_the_usual_counts(make: Callable[..., Site], name: str) -> None:
    assert not preset(name).federation.deadlines.norm_gate
    site = make(deadlines=f"norm_gate = {str(preset(name).federation.deadlines.norm_gate).lower()}")
    site.task()
    site.update("d1", value=0.5)
    (usual,) = site.bench.logged("accepted")
    site.state.norms = {"cluster+global": [usual.detail["norm"] / 11] * 50}
    site.update("d2", value=0.5)
    assert site.answer() == (True, "")
    site.bench.run_timers()
    assert site.bench.said(GatewayUpdate)[0].answered == 2


# --- devices that vanish in an open fleet -----------------------------------------------------------

OPEN = 'eligibility = "online"'


def test_a_device_that_has_left_is_not_waited_for(make: Callable[..., Site]) -> None:
    """It says so before its status does, and the round closes with the last answer of the others."""
    site = make(top=OPEN)
    site.task()
    site.update("d1")
    reply = TaskReply(kind="train", round=1, accepted=False, reason="the device has left")
    site.bench.receive(reply, "reply", "gw1", "d2")
    site.status("d2", "offline")
    closed = site.bench.run_timers()
    (report,) = site.bench.said(GatewayUpdate, closed)
    assert (report.asked, report.answered, site.bench.now) == (2, 1, 0.0)
    assert not site.bench.logged("silent", closed)


def test_after_a_will_a_device_is_waited_for_no_longer_than_the_grace(make: Callable[..., Site]) -> None:
    site = make(top=OPEN)
    site.task()
    site.update("d1")
    site.bench.now = 5.0
    site.status("d2", "offline")
    site.bench.now = 9.0
    site.status("d2", "offline")  # a will, and then a status that says it again
    assert site.bench.machine.timers() == {"deadline": 100.0, "gone d2": 5.0 + GRACE_S}
    site.bench.now = 5.0 + GRACE_S
    fired = site.bench.run_timers() + site.bench.run_timers()
    assert [line.subject for line in site.bench.logged("gone", fired)] == ["d2"]
    assert Settle("task:d2") in fired
    (report,) = site.bench.said(GatewayUpdate, fired)
    assert (report.answered, report.void) == (1, "")


def test_a_device_that_is_back_within_the_grace_is_waited_for(make: Callable[..., Site]) -> None:
    site = make(top=OPEN)
    site.task()
    site.update("d1")
    site.status("d2", "offline")
    site.bench.now = 10.0
    site.status("d2", "online", session=2)
    site.status("d2", "offline", session=1)  # the will of the earlier life comes late
    assert site.bench.machine.timers() == {"deadline": 100.0}
    site.bench.now = 90.0
    site.update("d2")
    (report,) = site.bench.said(GatewayUpdate, site.bench.run_timers())
    assert report.answered == 2


def test_who_was_given_up_still_counts_before_the_close(make: Callable[..., Site]) -> None:
    site = make(top=OPEN)
    site.task()
    site.status("d2", "offline")
    site.bench.now = GRACE_S
    site.bench.run_timers()
    assert site.state.collecting.waiting == ("d1",)
    site.update("d2")
    assert site.answer() == (True, "")


def test_with_a_roster_a_will_changes_nothing(site: Site) -> None:
    """Whoever comes back before the deadline gives the bits of a life without disturbance."""
    site.task()
    site.status("d2", "offline")
    assert site.bench.machine.timers() == {"deadline": 100.0}
