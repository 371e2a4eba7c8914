"""Do all exported forms answer as PyTorch does? 1,000 real test images, every architecture and input kind.

    python benchmarks/parity.py        # a table in Markdown, about a minute

A global and a cluster part are trained together for 120 steps on Fashion-MNIST, so that agreement means
something. Colour images are the gray ones, framed to 32x32 and tinted, each with its own colours. The
reference is PyTorch's own modules in eager mode, one per part, on pixels normalised in float64.
"""

from __future__ import annotations

import platform
from functools import partial

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch.nn.functional import cross_entropy

from export import exporter, graph, quantise, torchscript
from export.served import InputKind, ServedModel, Term
from export.session import Session
from fedbac_edge.datasets.fashion import folder
from fedbac_edge.datasets.sources import load
from fedbac_edge.models.additive import dump, network
from fedbac_edge.models.catalog import architecture
from fedbac_edge.settings.pictures import MODELS

GRAY, RGB = (1, 28, 28), (3, 32, 32)
MEAN, STD = (0.286, 0.29, 0.28), (0.353, 0.34, 0.36)
STEPS, BATCH, TESTED, CALIBRATED = 120, 64, 1000, 1000
Pixels = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]


def coloured(gray: Pixels) -> Pixels:
    """(N, 28, 28, 1) -> (N, 32, 32, 3)."""
    framed = np.pad(gray, ((0, 0), (2, 2), (2, 2), (0, 0)))
    tints = np.random.default_rng(3).uniform(0.3, 1.0, (len(gray), 1, 1, 3))
    return (framed * tints + np.roll(framed, 5, axis=1) * (1 - tints)).astype(np.uint8)


def normalised(pixels: Pixels, channels: int) -> torch.Tensor:
    """(N, height, width, channels) -> float32 (N, channels, height, width)."""
    scaled = (pixels / 255.0 - np.array(MEAN[:channels])) / np.array(STD[:channels])
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), dtype=np.float32))


def trained(name: str, shape: tuple[int, int, int], x: Pixels, y: npt.NDArray[np.int64]) -> ServedModel:
    """A pair of parts that has learned a little."""
    torch.manual_seed(5)
    chosen = architecture(name, shape, len(MODELS["fashion-mnist"].classes))
    modules = [network(chosen) for _ in range(2)]
    optimiser = torch.optim.Adam([p for module in modules for p in module.parameters()], 2e-3)
    images, labels = normalised(x, shape[0]), torch.from_numpy(y)
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        optimiser.zero_grad()
        cross_entropy(modules[0](images[batch]) + modules[1](images[batch]), labels[batch]).backward()
        optimiser.step()
    terms = tuple(Term(n, dump(m)) for n, m in zip(("global", "cluster-0"), modules, strict=True))
    return ServedModel(chosen, terms, MEAN[: shape[0]], STD[: shape[0]], MODELS["fashion-mnist"].classes)


def forms(model: ServedModel, pixels: Pixels, calibration: Pixels) -> dict[str, FloatArray]:
    """Form -> logits of `pixels`."""
    answers: dict[str, FloatArray] = {}
    kinds: tuple[InputKind, ...] = ("uint8", "float")
    for kind in kinds:
        given = torch.from_numpy(pixels) if kind == "uint8" else normalised(pixels, pixels.shape[-1])
        protos = {
            "ONNX, fused": graph.build(model, input_kind=kind),
            "ONNX, branches": graph.build(model, input_kind=kind, fuse=False),
            "ONNX, by torch's exporter": exporter.build(model, input_kind=kind),
        }
        if kind == "uint8":
            protos["ONNX, int8"] = quantise.quantise(model, calibration)
        for form, proto in protos.items():
            answers[f"{kind} | {form}"] = Session(proto.SerializeToString()).logits(pixels)
        for form, fuse in (("TorchScript, fused", True), ("TorchScript, branches", False)):
            with torch.inference_mode():
                script = torchscript.build(model, input_kind=kind, fuse=fuse)
                answers[f"{kind} | {form}"] = script(given).numpy()
    return answers


def main() -> None:
    torch.set_num_threads(1)
    read = partial(load, folder(), classes=MODELS["fashion-mnist"].classes, input_shape=GRAY)
    train, test = read(split="train").take(np.arange(STEPS * BATCH)), read(split="test")
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, {platform.machine()}\n")
    print(
        "| model | input | form | largest difference | same arg-max | accuracy |\n|---|---|---|---|---|---|"
    )
    for shape in (GRAY, RGB):
        x, tested = train.x, test.x[: TESTED + CALIBRATED]
        if shape == RGB:
            x, tested = coloured(x), coloured(tested)
        pixels, calibration, labels = tested[:TESTED], tested[TESTED:], test.y[:TESTED]
        for name in ("lenet", "lenet-wide"):
            model = trained(name, shape, x, train.y)
            with torch.inference_mode():
                expected = np.asarray(torchscript.Served(model, "float").eval()(normalised(pixels, shape[0])))
            best = expected.argmax(axis=1)
            size = "x".join(map(str, shape))
            print(f"| {name} {size} | float | PyTorch | | | {100 * np.mean(best == labels):.1f} % |")
            for form, logits in forms(model, pixels, calibration).items():
                chosen = logits.argmax(axis=1)
                print(
                    f"| {name} {size} | {form} | {np.abs(logits - expected).max():.1e} "
                    f"| {(chosen == best).sum()} | {100 * np.mean(chosen == labels):.1f} % |"
                )


if __name__ == "__main__":
    main()
