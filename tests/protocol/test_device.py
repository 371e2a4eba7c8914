"""The device's machine: one task at a time, an answer until its receipt, old news ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fedbac_edge.parts.part import pack
from fedbac_edge.protocol.device.machine import Device
from fedbac_edge.protocol.device.state import ANSWER, DeviceState, Profile
from fedbac_edge.protocol.events import (
    DataRead,
    Evaluated,
    Fetched,
    Hello,
    JobFailed,
    Leaving,
    Send,
    Settle,
    Started,
    StopWork,
    Trained,
    TrainJob,
    Work,
)
from fedbac_edge.protocol.messages import (
    DeviceScores,
    DeviceStatus,
    DeviceUpdate,
    EvaluateTask,
    Receipt,
    Spec,
    TaskReply,
    TrainTask,
)
from fedbac_edge.vocabulary.terms import Score
from fedbac_edge.vocabulary.training import LocalTraining

INSTANCE = "0badcafe"
TRAINING = LocalTraining(
    epochs=1, batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=0.0, clip_norm=1.0, l2={}
)


class Agent:
    """d1 at gw1; parts of rounds 1 to 3, none of them here yet."""

    def __init__(
        self, federation: Any, bench: Any, part_of: Any, store_part: Any, samples: int, holdout: int
    ) -> None:
        self.federation = federation
        blobs: dict[str, bytes] = {}
        profile = Profile(samples=samples, labelled=samples, holdout=holdout)
        self.bench = bench(
            Device("gw1", "d1", federation, profile, blobs, DeviceState(instance=INSTANCE)), blobs
        )
        self.elsewhere: dict[str, bytes] = {}
        self.parts = {
            round: {"global": store_part(self.elsewhere, "global", part_of(federation, float(round)))}
            for round in (1, 2, 3)
        }
        self.bench.do(Started())

    @property
    def state(self) -> DeviceState:
        found: DeviceState = self.bench.machine.state
        return found

    def train(self, round: int = 1, previous: int | None = None, **change: Any) -> Any:
        task = TrainTask(
            instance=INSTANCE,
            round=round,
            parts=self.parts[round],
            previous={} if previous is None else self.parts[previous],
            training=TRAINING,
            deadline_s=100.0,
        )
        return self.bench.receive(msgspec.structs.replace(task, **change), "task", "gw1", "d1")

    def evaluate(self, round: int = 1) -> Any:
        candidates = {0: self.parts[round], 1: self.parts[round]}
        task = EvaluateTask(instance=INSTANCE, round=round, candidates=candidates, deadline_s=100.0)
        return self.bench.receive(task, "task", "gw1", "d1")

    def fetch(self) -> Any:
        for hash in list(self.bench.machine.wanted()):
            self.bench.blobs[hash] = self.elsewhere[hash]
            self.bench.do(Fetched(hash, len(self.elsewhere[hash]) + 7))
        return self.bench.actions

    def fetched_job(self) -> Any:
        """Fetch what is wanted; the job that begins then."""
        (work,) = [action for action in self.fetch() if isinstance(action, Work)]
        return work.job

    def trained(self, round: int = 1) -> Any:
        score = Score(10, 5, 10.0)
        return self.bench.do(Trained(f"train-{round}", {"global": pack({})}, 30, 100, 1.5, score, None))

    def receipt(self, round: int = 1, kind: str = "train", accepted: bool = True) -> Any:
        return self.bench.receive(Receipt(kind=kind, round=round, accepted=accepted), "receipt", "gw1", "d1")

    def replies(self) -> list[tuple[bool, str]]:
        return [(reply.accepted, reply.reason) for reply in self.bench.said(TaskReply)]


@pytest.fixture
def agent(federation_of: Any, bench: Any, part_of: Any, store_part: Any) -> Agent:
    return Agent(federation_of(), bench, part_of, store_part, samples=100, holdout=10)


def test_from_task_to_receipt(agent: Agent) -> None:
    agent.train()
    assert agent.replies() == [(True, "")]
    assert agent.state.timers == {"deadline": 100.0}
    job = agent.fetched_job()
    assert job == TrainJob(
        id="train-1",
        parts={"global": agent.parts[1]["global"].hash},
        previous={},
        training=TRAINING,
        seed=(1, "device", "d1", 1, "train"),
        round=1,
    )
    agent.bench.now = 12.0
    agent.trained()
    (send,) = agent.bench.of(Send)
    update = send.message
    assert isinstance(update, DeviceUpdate)
    assert send.key == ANSWER, "said again until its receipt"
    assert (update.device, update.round, update.instance) == ("d1", 1, INSTANCE)
    assert update.base == {"global": agent.parts[1]["global"].hash}
    assert update.received == agent.parts[1]["global"].size + 7
    assert (update.samples, update.data, update.seconds) == (30, 100, 12.0)
    assert agent.state.timers == {}
    agent.receipt()
    assert Settle(ANSWER) in agent.bench.actions
    assert agent.state.phase == "done"
    assert agent.receipt() == [], "a second receipt is no news"


def test_a_refusal_is_a_receipt_too(agent: Agent) -> None:
    agent.train()
    agent.fetch()
    agent.trained()
    agent.receipt(accepted=False)
    assert Settle(ANSWER) in agent.bench.actions
    assert agent.bench.logged("receipt")[0].detail["accepted"] is False


def test_receipts_of_something_else_settle_nothing(agent: Agent) -> None:
    agent.train(2)
    agent.fetch()
    assert agent.receipt(2) == []
    agent.trained(2)
    for other in ((1, "train"), (2, "evaluate"), (3, "train")):
        assert agent.receipt(*other) == []
    assert agent.state.phase == "answered"


def test_the_same_task_again_changes_nothing(agent: Agent) -> None:
    agent.train()
    agent.fetch()
    before = msgspec.msgpack.encode(agent.state)
    agent.train()
    assert agent.replies() == [(True, "")]
    assert agent.bench.of(Work) == []
    assert msgspec.msgpack.encode(agent.state) == before


def test_a_newer_task_replaces_and_an_older_one_is_ignored(agent: Agent) -> None:
    agent.train(1)
    agent.fetch()
    agent.train(2)
    assert StopWork() in agent.bench.actions
    assert Settle(ANSWER) in agent.bench.actions
    assert agent.trained(1) == [], "the job of the dropped task"
    agent.train(1)
    assert agent.bench.logged("stale task")
    assert agent.replies() == []
    agent.evaluate(1)
    assert agent.bench.logged("stale task")
    agent.evaluate(2)
    assert agent.replies() == [(True, "")]


def test_a_task_of_another_federation_is_ignored(agent: Agent) -> None:
    agent.train(instance="00000000")
    assert agent.bench.logged("foreign task")
    assert agent.state.phase == "idle"


def test_no_data_no_hold_out(federation_of: Any, bench: Any, part_of: Any, store_part: Any) -> None:
    agent = Agent(federation_of(), bench, part_of, store_part, samples=0, holdout=0)
    agent.train()
    assert agent.replies() == [(False, "no data")]
    agent.train()
    assert agent.replies() == [(False, "no data")], "asked again, it says so again"
    agent.evaluate(2)
    assert agent.replies() == [(False, "no hold-out")]
    assert agent.bench.machine.wanted() == {}
    assert agent.bench.machine.timers() == {}


@pytest.mark.parametrize("fetched", [False, True])
def test_the_deadline_passes(agent: Agent, fetched: bool) -> None:
    agent.train()
    if fetched:
        agent.fetch()
    agent.bench.now = 100.0
    agent.bench.run_timers()
    assert StopWork() in agent.bench.actions
    assert agent.replies() == [(False, "the deadline passed")]
    assert agent.trained() == []
    assert agent.bench.machine.wanted() == {}


def test_a_job_that_fails_is_a_decline_with_its_reason(agent: Agent) -> None:
    agent.train()
    agent.fetch()
    agent.bench.do(JobFailed("train-1", "no memory " * 100))
    ((accepted, reason),) = agent.replies()
    assert not accepted
    assert reason.startswith("no memory")
    assert len(reason) <= 400
    assert agent.bench.do(JobFailed("train-1", "again")) == []


def test_a_device_that_cannot_train_leaves_the_selection(agent: Agent) -> None:
    """It stays, counts no samples any more, and begins anew with its process."""
    agent.train()
    agent.fetch()
    agent.bench.do(JobFailed("train-1", "torch could not be loaded", final=True))
    assert agent.replies() == [(False, "torch could not be loaded")]
    (status,) = agent.bench.said(DeviceStatus)
    assert (status.state, status.samples, status.labelled, status.holdout) == ("online", 0, 0, 0)
    agent.evaluate()
    assert agent.replies() == [(False, "torch could not be loaded")]
    agent.bench.do(Started())
    agent.bench.do(Hello())
    (status,) = agent.bench.said(DeviceStatus)
    assert status.samples == 100


def test_what_was_served_is_scored_again_a_round_later(agent: Agent) -> None:
    agent.train(1)
    agent.fetch()
    agent.trained(1)
    agent.evaluate(1)  # in between changes nothing
    agent.train(2, previous=1)
    first = agent.parts[1]["global"].hash
    assert first in agent.bench.machine.kept()
    assert first not in agent.bench.machine.wanted()
    job = agent.fetched_job()
    assert job.previous == {"global": first}
    agent.train(3, previous=2)
    assert first not in agent.bench.machine.kept(), "two generations, not three"


def test_without_the_previous_model_there_is_no_pair(agent: Agent) -> None:
    agent.train(2, previous=1)
    job = agent.fetched_job()
    assert job.previous == {}


def test_scores_of_every_candidate(agent: Agent) -> None:
    agent.evaluate()
    job = agent.fetched_job()
    assert set(job.candidates) == {0, 1}
    score = Score(10, 5, 10.0)
    agent.bench.do(Evaluated("evaluate-1", {0: score, 1: score}))
    (scores,) = agent.bench.said(DeviceScores)
    assert scores.scores == {0: score, 1: score}
    agent.receipt(kind="evaluate")
    assert agent.state.phase == "done"


def test_a_restart_works_on(agent: Agent) -> None:
    agent.train()
    agent.fetch()
    agent.bench.do(Started())
    assert [work.job.id for work in agent.bench.of(Work)] == ["train-1"]
    assert agent.state.session == 2
    agent.bench.do(Hello())
    (status,) = agent.bench.said(DeviceStatus)
    assert (status.state, status.session, status.samples, status.holdout) == ("online", 2, 100, 10)
    assert agent.bench.machine.status("offline").message.session == 2, "the will carries the same number"


def test_a_new_federation_under_the_old_name_resets(agent: Agent) -> None:
    agent.train()
    agent.fetch()
    spec = Spec(federation=agent.federation, instance=INSTANCE, software="")
    assert agent.bench.receive(spec, "spec") == []
    agent.bench.receive(msgspec.structs.replace(spec, instance="feedf00d"), "spec")
    assert agent.bench.actions[:2] == [StopWork(), Settle(ANSWER)]
    assert agent.state == DeviceState(instance="feedf00d", session=1)
    assert agent.bench.machine.kept() == set()
    agent.train()
    assert agent.bench.logged("foreign task")


def statuses(actions: Any) -> list[tuple[int, int, int]]:
    messages = [action.message for action in actions if isinstance(action, Send)]
    return [(m.samples, m.labelled, m.holdout) for m in messages if isinstance(m, DeviceStatus)]


def test_new_data_are_said_at_once_between_rounds(agent: Agent) -> None:
    assert statuses(agent.bench.do(DataRead(100, 100, 10))) == [], "nothing new"
    assert statuses(agent.bench.do(DataRead(130, 125, 13))) == [(130, 125, 13)]
    assert statuses(agent.bench.do(DataRead(80, 80, 8))) == [(80, 80, 8)]
    assert statuses(agent.bench.do(DataRead(0, 0, 0))) == [(0, 0, 0)]
    agent.train()
    assert agent.replies() == [(False, "no data")]


def test_data_that_grow_during_a_task_are_said_before_its_answer(agent: Agent) -> None:
    agent.train()
    agent.fetched_job()
    assert statuses(agent.bench.do(DataRead(130, 130, 13))) == [(130, 130, 13)]
    assert statuses(agent.trained()) == []
    assert statuses(agent.receipt()) == []


@pytest.mark.parametrize("after", ["working", "answered"])
def test_data_that_shrink_count_until_the_answer_from_them_has_its_receipt(agent: Agent, after: str) -> None:
    """Else the gateway would refuse an update for samples that the device had when it trained."""
    agent.train()
    agent.fetched_job()
    if after == "answered":
        agent.trained()
    assert statuses(agent.bench.do(DataRead(60, 50, 5))) == [(110, 100, 10)], "the larger of each kind"
    if after == "working":
        assert statuses(agent.trained()) == []
    assert statuses(agent.receipt()) == [(60, 50, 5)]


@pytest.mark.parametrize("phase", ["idle", "fetching", "working", "answered"])
def test_a_device_that_leaves_in_its_work_gives_the_task_back(
    agent: Agent, federation_of: Any, phase: Any
) -> None:
    agent.bench.machine.federation = federation_of(top='eligibility = "online"')
    agent.train()
    agent.state.phase = phase
    replies = agent.bench.said(TaskReply, agent.bench.do(Leaving()))
    given_back = [TaskReply(kind="train", round=1, accepted=False, reason="the device has left")]
    assert replies == (given_back if phase in ("fetching", "working") else [])
    assert agent.state.phase == phase, "it may come back, and goes on"


def test_with_a_roster_a_device_that_leaves_keeps_its_task(agent: Agent) -> None:
    agent.train()
    assert agent.bench.do(Leaving()) == []
