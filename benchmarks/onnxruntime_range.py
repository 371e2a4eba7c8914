"""The two halves of onnxruntime_range.sh: `write` models and their logits, `check` them in another
environment.

`check` needs numpy and onnxruntime alone, like a device.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SHAPES = {"gray": (1, 28, 28), "rgb": (3, 32, 32)}


def write(folder: Path) -> None:
    """Every architecture, input kind, number of parts and precision, with 50 images each."""
    from export import graph, quantise
    from export.served import ServedModel, Term
    from export.session import Session
    from fedbac_edge.models.catalog import architecture

    rng = np.random.default_rng(0)
    for colour, shape in SHAPES.items():
        images = rng.integers(0, 256, (50, *shape[1:], shape[0]), dtype=np.uint8)
        for name in ("lenet", "lenet-wide"):
            for parts in (1, 2, 3):
                chosen = architecture(name, shape, 10)
                terms = tuple(Term(f"part-{i}", chosen.init(rng), 1 / parts) for i in range(parts))
                classes = tuple(f"class-{i}" for i in range(10))
                model = ServedModel(chosen, terms, (0.5,) * shape[0], (0.25,) * shape[0], classes)
                protos = {
                    "uint8": graph.build(model, part_logits=True),
                    "float": graph.build(model, input_kind="float"),
                    "branches": graph.build(model, fuse=False),
                    "int8": quantise.quantise(model, images),
                }
                for form, proto in protos.items():
                    path = folder / f"{name}-{colour}-{parts}-{form}.onnx"
                    graph.write(proto, path)
                    np.savez(path.with_suffix(".npz"), images=images, logits=Session(path).logits(images))


def check(folder: Path) -> int:
    """Compare; int8 may differ by rounding between versions and processors, so its bound is wider."""
    import onnxruntime

    from export.session import Session

    worst = {"float": 0.0, "int8": 0.0}
    models = sorted(folder.glob("*.onnx"))
    for path in models:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
            images, expected = stored["images"], stored["logits"]
        largest = float(np.abs(Session(path).logits(images) - expected).max())
        kind = "int8" if path.stem.endswith("int8") else "float"
        worst[kind] = max(worst[kind], largest)
    good = bool(models) and worst["float"] < 1e-5 and worst["int8"] < 2e-2
    verdict = "agree" if good else "DIFFER"
    print(
        f"onnxruntime {onnxruntime.__version__}, numpy {np.__version__}: {len(models)} models, largest "
        f"difference {worst['float']:.1e} (float), {worst['int8']:.1e} (int8): {verdict}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        raise SystemExit(check(Path(sys.argv[2])))
