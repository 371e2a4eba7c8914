"""The demonstration from the first line to the last."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbac_edge.datasets import npz
from fedbac_edge.demo import annotated, data, federation, verdict
from fedbac_edge.demo.children import Children
from fedbac_edge.host.signals import Stop
from fedbac_edge.terminal.rounds import percent, size

if TYPE_CHECKING:
    from fedbac_edge.demo.settings import Settings
    from fedbac_edge.settings.federation import Federation
    from fedbac_edge.terminal.views import View


def run(settings: Settings, view: View, stop: Stop) -> verdict.Verdict | annotated.AnnotatedVerdict:
    """Prepare, start, follow, judge; whatever happens, no process is left behind.

    Raises DataError, PartitionError, BrokerError, ChildDied, Interrupted.
    """
    began = time.monotonic()
    description, cut = data.prepare(settings)  # first: what it refuses leaves no folder behind
    stop.check()
    for folder in (settings.logs, settings.state):
        folder.mkdir(parents=True, exist_ok=True)
    view.note(
        f"data: {settings.samples} images of Fashion-MNIST over {settings.gateways} gateways with "
        f"{settings.devices} devices each, {_labels(settings)}partition {cut[:12]}"
    )
    children = Children(settings.logs, federation.environment(), stop)
    try:
        broker, kind = federation.start_broker(children, settings)
        cloud = federation.start_tiers(children, settings, description, broker)
        view.note(f"started {len(children.names())} processes on {broker} ({kind}); logs in {settings.logs}")
        view.doing("devices join")
        federation.follow(children, cloud, settings, view)
        view.doing("judging the exported models")
        result, lines = _judged(settings, description, broker, began)
        stop.check()
        for line in lines:
            view.note(line)
        if settings.keep:
            view.note(f"broker, gateways and agents stay until Ctrl-C; try: fedbac status --broker {broker}")
            while True:
                children.check()
                time.sleep(federation.POLL_S)
        return result
    finally:
        children.stop()


def _judged(
    settings: Settings, description: Federation, broker: str, began: float
) -> tuple[verdict.Verdict | annotated.AnnotatedVerdict, list[str]]:
    """The verdict, and the closing lines that tell it."""
    save_examples(settings)
    if settings.method == "hassle":
        found = annotated.judge(settings, description)
        return found, annotated.summary(settings, found, broker, time.monotonic() - began)
    result = verdict.judge(settings, description)
    return result, summary(settings, result, broker, time.monotonic() - began)


def as_json(result: verdict.Verdict | annotated.AnnotatedVerdict) -> dict[str, Any]:
    """The verdict's figures, with paths as text."""
    if isinstance(result, annotated.AnnotatedVerdict):
        return annotated.as_json(result)
    return verdict.as_json(result)


def _labels(settings: Settings) -> str:
    """ "2 with all labels, 2 with some, 4 with none, ", of the method that learns without."""
    if settings.method != "hassle":
        return ""
    full, partial, bare = settings.annotation.split("/")
    return (
        f"{full} with all labels, {partial} with some, {bare} with none ({100 * settings.labels:g} % of the "
        "images have one), "
    )


def save_examples(settings: Settings) -> None:
    """Ten test images of each site as .npy, for `fedbac-agent infer`."""
    for place in sorted(settings.data.glob("gw*/test.npz")):
        test = npz.read(place)
        np.save(place.with_name("examples.npy"), test.x[:: max(1, len(test) // 10)][:10])


def summary(settings: Settings, result: verdict.Verdict, broker: str, seconds: float) -> list[str]:
    """The closing lines: figures, where everything lies, what to try next."""
    bandits = result.bandits
    worst = min(result.sites, key=lambda site: site.test_accuracy)
    best = max(result.sites, key=lambda site: site.test_accuracy)
    model = next(path for path in result.models if path.stem == f"cluster-{worst.cluster}")
    lines = [
        "",
        f"Test accuracy by the exported models: {percent(result.test_accuracy)} (mean over sites), "
        f"worst {worst.name} {percent(worst.test_accuracy)}, best {best.name} {percent(best.test_accuracy)}",
    ]
    lines += [
        f"  {site.name}: cluster {site.cluster}, {site.test_samples} test images "
        f"{percent(site.test_accuracy)}, hold-out {percent(site.holdout_accuracy)}"
        for site in result.sites
    ]
    lines += [
        f"{result.rounds} rounds in {seconds:.0f} s; devices sent {size(result.up_bytes)} and fetched "
        f"{size(result.down_bytes)}",
        f"Thompson sampling ranked {bandits.ranked_selections} selections; LinUCB weighed "
        f"{bandits.placements_weighed} placements and moved {bandits.moves}",
        "",
        f"federation  {settings.federation}",
        f"stores      {settings.state}  (fedbac status --state {settings.state})",
        f"logs        {settings.logs}",
        f"models      {settings.models}",
        f"data        {settings.data}",
        "",
        "Next: let a model name images of a site, without torch:",
        f"  fedbac-agent infer --model {model} {settings.data / worst.name / 'examples.npy'}",
        "or begin a federation of your own: fedbac init",
    ]
    return lines


def interrupted_by(number: int) -> str:
    """The signal in words."""
    return {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}.get(signal.Signals(number), "hung up")
