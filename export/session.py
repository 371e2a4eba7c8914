"""Answers on the device: numpy and onnxruntime, nothing else.

One thread that sleeps when there is nothing to do, batches cut into a few fixed sizes so that memory stays
where it is, and no model that reaches outside its own file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from export.inspection import MalformedModelError, refers_to_other_files

if TYPE_CHECKING:
    from fedbac_edge.datasets import picture

SIZE_LIMIT = 64 * 2**20
LARGEST_BATCH = 64
MOST_PIXELS = 50_000_000
"""Of a model's input; those of files and arrays: `picture.MAX_PIXELS`."""

Pixels = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]


class ModelError(ValueError):
    """The model is refused; the sentence says why."""


class InputError(ValueError):
    """An input does not fit the model; the sentence says what the model takes."""


class OtherSize(InputError):
    """A good picture of another size than the model's."""

    def __init__(self, where: str, error: picture.OtherSize) -> None:
        (width, height), wanted = error.size, error.wanted
        super().__init__(
            f"{where}: the model takes {wanted[0]}x{wanted[1]} pixels, this has {width}x{height} "
            "(width x height)"
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer. `logits` has one float32 per class; `classes` are their labels, in the same order."""

    label: str
    index: int
    logits: FloatArray
    classes: tuple[str, ...] = field(repr=False)

    @property
    def probability(self) -> float:
        """That of `label`, by softmax; computed when asked for: it costs a tenth of the whole answer."""
        # softmax at its largest entry: 1 / sum(exp(logit - largest))
        return float(1.0 / np.exp(self.logits - self.logits[self.index]).sum())

    def top_k(self, k: int) -> list[tuple[str, float]]:
        """The `k` most probable labels with their probabilities, the most probable first."""
        probabilities = softmax(self.logits)
        order = np.argsort(-probabilities, kind="stable")[:k]
        return [(self.classes[i], float(probabilities[i])) for i in order]


class Session:
    """A loaded model.

    `model` is a path or the bytes of the file. `classes` are its labels, `metadata` the strings stored in
    it, `input_shape` is (channels, height, width). Raises ModelError when the file is larger than
    `size_limit` bytes, refers to other files, or is not a model that this project exported.
    """

    def __init__(self, model: str | Path | bytes, *, size_limit: int = SIZE_LIMIT) -> None:
        self._session = _load(_read(model, size_limit))
        try:
            (given,) = self._session.get_inputs()
            self._input: str = given.name
            found = (given.type, given.shape)
            self.outputs: tuple[str, ...] = tuple(output.name for output in self._session.get_outputs())
            self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
            self.classes: tuple[str, ...] = tuple(json.loads(self.metadata["classes"]))
            described = json.loads(self.metadata["input"])
            self.input_kind: Literal["uint8", "float"] = described["kind"]
            channels, height, width = (int(n) for n in described["shape"])
            normalisation = json.loads(self.metadata["normalisation"])
            self._mean = np.asarray(normalisation["mean"], np.float32).reshape(channels)
            self._std = np.asarray(normalisation["std"], np.float32).reshape(channels)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                "the model does not say what its classes and its input are; export it with this project"
            ) from error
        self.input_shape = (channels, height, width)
        self._check(*found)

    def _check(self, element: str, shape: list[int | str]) -> None:
        """Hold the graph to its description: input, output, and one blank image that must go through."""
        channels, height, width = self.input_shape
        raw = self.input_kind == "uint8"
        expected = [height, width, channels] if raw else [channels, height, width]
        if element != ("tensor(uint8)" if raw else "tensor(float)") or shape[1:] != expected:
            raise ModelError(f"the model's input {element} {shape} is not what its description says")
        if not 0 < channels * height * width <= MOST_PIXELS or "logits" not in self.outputs:
            raise ModelError("the model needs images of a sensible size and an output called logits")
        try:
            names = [name for name in self.outputs if name.split(".")[0] == "logits"]
            answers = self.run(np.zeros((1, height, width, channels), np.uint8), names)
        except Exception as error:  # onnxruntime raises its own classes, all direct children of Exception
            raise ModelError(f"the model cannot answer for a blank image: {error}") from error
        if any(np.shape(a) != (1, len(self.classes)) or not np.isfinite(a).all() for a in answers):
            raise ModelError(f"the model does not give {len(self.classes)} finite logits per image")

    def predict(self, images: npt.ArrayLike) -> list[Prediction]:
        """One answer per image.

        `images` are uint8 pixels: (N, height, width, channels), one (height, width, channels), or, for gray
        models, (height, width) or (N, height, width). Raises InputError for anything else.
        """
        logits = self.logits(images)
        classes = self.classes
        best = logits.argmax(axis=1).tolist()
        return [Prediction(classes[i], i, row, classes) for i, row in zip(best, logits, strict=True)]

    def top_k(self, images: npt.ArrayLike, k: int = 3) -> list[list[tuple[str, float]]]:
        """For each image its `k` most probable labels with their probabilities."""
        return [prediction.top_k(k) for prediction in self.predict(images)]

    def logits(self, images: npt.ArrayLike) -> FloatArray:
        """Logits (N, classes) of `images` as `predict` takes them."""
        return self.run(images, ["logits"])[0]

    def part_logits(self, images: npt.ArrayLike) -> dict[str, FloatArray]:
        """What each part adds to the logits: part -> (N, classes). Empty if the model was not exported so."""
        names = [name for name in self.outputs if name.startswith("logits.")]
        if not names:
            return {}
        return {
            name.removeprefix("logits."): values
            for name, values in zip(names, self.run(images, names), strict=True)
        }

    def run(self, images: npt.ArrayLike, outputs: Sequence[str]) -> list[FloatArray]:
        """The named outputs for `images`, each (N, classes)."""
        batch = self.as_batch(images)
        if len(batch) == 1:
            answer: list[FloatArray] = self._session.run(outputs, {self._input: self._encode(batch)})
            return answer
        pieces = [
            self._session.run(outputs, {self._input: self._encode(batch[start:stop])})
            for start, stop in _cut(len(batch))
        ]
        return [np.concatenate(column) for column in zip(*pieces, strict=True)]

    def as_batch(self, images: npt.ArrayLike) -> Pixels:
        """`images` as `predict` takes them, as (N, height, width, channels); raises InputError."""
        array = np.asarray(images)
        channels, height, width = self.input_shape
        if array.dtype != np.uint8:
            raise InputError(f"images are uint8 pixels from 0 to 255, not {array.dtype}")
        if channels == 1 and array.shape[-2:] == (height, width) and array.ndim in (2, 3):
            array = array[..., None]
        if array.ndim == 3:
            array = array[None]
        if array.ndim != 4 or array.shape[1:] != (height, width, channels):
            raise InputError(
                f"the model takes images of {height}x{width} pixels with {channels} channel(s), "
                f"these have the shape {np.shape(images)}"
            )
        if len(array) == 0:
            raise InputError("there is no image in the batch")
        return array

    def _encode(self, batch: Pixels) -> npt.NDArray[Any]:
        """What the graph takes: the pixels themselves, or normalised (N, channels, height, width)."""
        if self.input_kind == "uint8":
            return np.ascontiguousarray(batch)
        scaled = (batch.astype(np.float32) / np.float32(255.0) - self._mean) / self._std
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def softmax(logits: FloatArray) -> FloatArray:
    """Probabilities along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scaled: FloatArray = powers / powers.sum(axis=-1, keepdims=True)
    return scaled


def session_options() -> ort.SessionOptions:
    """One thread, which sleeps while it waits; no arena that grows with the shapes it has met."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # what goes wrong is raised; logged errors would only repeat it
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{pool}.allow_spinning", "0")
    return options


def read_image(source: str | Path | bytes, session: Session, *, fit: bool = False) -> Pixels:
    """Pixels (height, width, channels) of an image file or its bytes, as a device in training sees them.

    The size is read from the file's head, before anything is decoded. `fit` resizes instead of refusing
    another size. Raises InputError for files that are no image or do not fit.
    """
    from fedbac_edge.datasets import picture

    where = "the image" if isinstance(source, bytes) else str(source)
    try:
        found = picture.decode(
            source if isinstance(source, bytes) else Path(source), session.input_shape, resize=fit
        )
    except picture.OtherSize as error:
        raise OtherSize(where, error) from error
    except picture.PictureError as error:
        raise InputError(f"{where}: {error}") from error
    return found.pixels


def _read(model: str | Path | bytes, size_limit: int) -> bytes:
    if isinstance(model, bytes):
        data = model
        if len(data) > size_limit:
            raise ModelError(f"the model has {len(data)} bytes, more than the limit of {size_limit}")
    else:
        try:
            with open(model, "rb") as file:
                data = file.read(size_limit + 1)
        except OSError as error:
            raise ModelError(f"{model}: not readable ({error.strerror})") from error
        if len(data) > size_limit:
            raise ModelError(f"{model}: larger than the limit of {size_limit} bytes")
    return data


def _load(data: bytes) -> ort.InferenceSession:
    try:
        outside = refers_to_other_files(data)
    except MalformedModelError as error:
        raise ModelError(f"these bytes are not an ONNX model: {error}") from error
    if outside:
        raise ModelError("the model keeps weights in other files; only models in one file are taken")
    try:
        return ort.InferenceSession(
            data, session_options(), providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # onnxruntime raises its own classes, all direct children of Exception
        raise ModelError(f"onnxruntime refuses the model: {error}") from error


def _cut(count: int) -> Iterator[tuple[int, int]]:
    """Pieces whose sizes are powers of two up to LARGEST_BATCH, so that few shapes ever occur."""
    start, size = 0, LARGEST_BATCH
    while start < count:
        while size > count - start:
            size //= 2
        yield start, start + size
        start += size
