"""A campaign: T rounds of the federation's file. How far it is, and what the cloud says of it.

Rounds are counted on over all campaigns. In a fleet void rounds do not use a campaign up; a laboratory has
the paper's number of rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedbac_edge.methods.method import Method
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import Channel, Log, Send
from fedbac_edge.protocol.messages import CloudStatus
from fedbac_edge.settings.federation import Federation

VOIDS_LEAST = 10
"""A campaign ends after as many void rounds in a row as it has rounds, and after no fewer than these."""


@dataclass(frozen=True)
class Campaign:
    """The cloud as its rooms see it; `blobs` is the store's view by content hash."""

    federation: Federation
    method: Method
    state: CloudState
    blobs: Mapping[str, bytes]

    @property
    def last_round(self) -> int:
        """T in the first campaign; rounds are counted on in the next ones. Void rounds come on top."""
        return self._rounds_before + self.federation.rounds

    @property
    def round_in_campaign(self) -> int:
        """t: 1 in the first round of every campaign, T in the last; 0 before the first one."""
        return self.state.round - self._rounds_before

    @property
    def counts_updates_alone(self) -> bool:
        """In a fleet void rounds do not use up a campaign; a laboratory has the paper's number."""
        return self.federation.evaluation == "holdout"

    @property
    def has_given_up(self) -> bool:
        """So many rounds in a row were void that more of them promise nothing."""
        return self.counts_updates_alone and self.state.voids >= max(VOIDS_LEAST, self.federation.rounds)

    @property
    def _rounds_before(self) -> int:
        """How many came before this campaign, and those in it that were void."""
        after = self.state.campaign_after
        before = self.federation.rounds * (self.state.campaign - 1) if after is None else after
        return before + self.state.unused


def begin_next(state: CloudState) -> Log:
    """A fleet has no last round: the next campaign goes on with parts, arms and posteriors."""
    state.campaign += 1
    state.campaign_after, state.unused = state.round, 0
    return Log("campaign", "", state.round, {"number": state.campaign})


def status(campaign: Campaign, word: str) -> Send:
    """Where the campaign stands: a phase, or "offline" for the will."""
    state = campaign.state
    message = CloudStatus(
        state=word,
        session=state.session,
        round=state.round,
        rounds=campaign.last_round,
        last=state.last,
    )
    return Send(Channel("status"), message, retain=True)
