"""Feeds one decoder with what atheris makes of its examples: python fuzz.py NAME INPUTS SECONDS CORPUS.

A line of JSON tells every so often how many inputs there were and how much memory is in use. Whatever the
decoder raises beside its refusals ends the process with atheris's report.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["broker", "fedbac_edge"]):
    from fedbac_edge.lab.trials import strangers


def main() -> None:
    """See the module."""
    name, inputs, seconds, corpus = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    decoder = strangers.decoders()[name]
    for number, example in enumerate(decoder.examples):
        (corpus / f"example-{number}").write_bytes(example)
    count, read, began = 0, 0, time.monotonic()

    def one(data: bytes) -> None:
        nonlocal count, read
        count += 1
        if count in (inputs // 10, inputs // 2, inputs) or count % 10_000 == 0:
            tell(count, read, time.monotonic() - began)
        with contextlib.suppress(*decoder.refusals):
            decoder.read(data)
            read += 1

    arguments = [f"-runs={inputs}", f"-max_total_time={seconds}", "-max_len=4096", "-print_final_stats=0"]
    atheris.Setup([sys.argv[0], *arguments, "-rss_limit_mb=2048", "-verbosity=0", str(corpus)], one)
    atheris.Fuzz()


def tell(count: int, read: int, seconds: float) -> None:
    """Inputs so far, how many of them were readable, resident memory in MB."""
    status = Path("/proc/self/status").read_text().splitlines()
    resident = int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024
    said = {"inputs": count, "read": read, "mb": round(resident, 1), "seconds": round(seconds, 1)}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
