"""Five hundred rounds in five campaigns: nothing that a role holds in memory or on disk grows with them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fedbac_edge.lab.fleet.world import World
from fedbac_edge.lab.trials import trials
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.cloud.state import CloudState

pytestmark = pytest.mark.soak

ROUNDS, CAMPAIGN, LEDGER_ROUNDS = 500, 100, 50
EARLY = 110
KB = 1024.0


def test_five_hundred_rounds(tmp_path: Path, record: Callable[[str], None]) -> None:
    federation = trials.federation_of((1, 2, 2, "int8"))
    federation = msgspec.structs.replace(federation, rounds=CAMPAIGN)
    trial = trials.Trial(federation, World())
    trial.add_all(lambda name: Store(tmp_path / f"{name}.sqlite", durable=False))
    processes = trial.world.processes
    processes["cloud"].make = lambda store: assemble.cloud(
        federation,
        trials.INSTANCE,
        store,
        lambda: trial.world.now,
        continuing=True,
        ledger_rounds=LEDGER_ROUNDS,
    )
    processes["gw1"].make = lambda store: assemble.gateway(
        federation.name, "gw1", store, lambda: trial.world.now, ledger_rounds=LEDGER_ROUNDS
    )

    def run_to(round: int) -> None:
        def there() -> bool:
            state: CloudState | None = trial.cloud
            return state is not None and (state.round, state.phase) == (round, "training")

        assert trial.world.run(there, 1e9)

    def held() -> dict[str, float]:
        """KB of memory, and per role KB of files and numbers of rows."""
        gc.collect()
        sizes = {"memory": tracemalloc.get_traced_memory()[0] / KB}
        sizes["retained"] = len(trial.world.broker.retained)
        for name, process in processes.items():
            path = tmp_path / f"{name}.sqlite"
            wal = path.with_name(f"{path.name}-wal")
            sizes[f"{name} file"] = path.stat().st_size / KB
            sizes[f"{name} WAL"] = wal.stat().st_size / KB if wal.exists() else 0.0
            sizes[f"{name} blobs"] = len(process.store.blobs)
            sizes[f"{name} outbox"] = len(process.store.outbox())
            sizes[f"{name} state"] = len(process.store.read("machine") or b"") / KB
            sizes[f"{name} ledger"] = len(process.store.ledger())
        return sizes

    tracemalloc.start()
    try:
        run_to(EARLY)
        early = held()
        run_to(ROUNDS)
        late = held()
    finally:
        tracemalloc.stop()
    record(f"round {EARLY}: " + ", ".join(f"{what} {size:.0f}" for what, size in early.items()))
    record(f"round {ROUNDS}: " + ", ".join(f"{what} {size:.0f}" for what, size in late.items()))
    for what, size in late.items():
        if what.endswith("ledger"):
            # A device's own ledger goes back 1,000 rounds, some lines each.
            bound = early[what] + (10 if not what.startswith("d") else 5 * (ROUNDS - EARLY))
        else:
            bound = 1.25 * early[what] + (300 if what.endswith(("file", "memory")) else 4)
        assert size <= bound, (what, early[what], size)
    assert state_rounds(trial) == ROUNDS


def state_rounds(trial: trials.Trial) -> int:
    assert trial.cloud is not None
    return trial.cloud.round
