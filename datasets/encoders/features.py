"""Features of images or texts by an encoder, computed once and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from datasets.cache import SourceError, cache_dir, code_digest, find_named, store_named
from datasets.dataset import Column, Dataset
from datasets.encoders.registry import ENCODERS, Encoder
from datasets.errors import DataError, nearest, warn_once

log = logging.getLogger(__name__)

BATCH = 64  # samples that are encoded together
LINES = 10  # of the log about features in progress
TOLERANCE = 1e-2  # of the largest feature of a batch: rounding in half precision is less
Arguments = tuple[Any, ...]  # of an encoder's network: samples; of texts also the most tokens of one


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Settings of the step that makes features of samples.

    Attributes
    ----------
    encoder : str
        Name of an encoder.
    size : int, optional
        The side of an image in pixels, or the most tokens of a text. Default: the encoder's.
    columns : tuple of str
        Raw columns of text to encode, for an encoder of texts.
    norm : float, optional
        Norm to which the features of each image or text are scaled; None leaves them.
    until : str, optional
        Layer of an encoder of images after which it stops: its outputs are the features, of any shape. None: the
        last.
    code : str or None
        Digest of the code of a plugin's encoder; None if its code is not known, and features are not kept.
    """

    encoder: str
    size: int | None = None
    columns: tuple[str, ...] = ()
    norm: float | None = None
    until: str | None = None
    code: str | None = ""

    @property
    def registered(self) -> Encoder:
        """The encoder; raise DataError if there is none of the name."""
        if self.encoder not in ENCODERS:
            raise DataError(f"unknown encoder {self.encoder!r}; {nearest(self.encoder, ENCODERS)}")
        return ENCODERS[self.encoder]

    @property
    def length(self) -> int:
        """The size."""
        return self.size or self.registered.size

    def network(self) -> nn.Module:
        """Return the network up to its last layer that is used; raise DataError if there is none."""
        return self.registered.build() if self.until is None else self.registered.parts(self.until)[0]


def encode(dataset: Dataset, settings: EncoderSettings, *, computed: bool = True) -> Dataset:
    """Return a data set whose features are those of an encoder.

    Parameters
    ----------
    dataset : Dataset
        Images ``(n, 1 or 3, h, w)`` with pixels in [0, 1], or a table with raw columns of text.
    settings : EncoderSettings
        What encodes them, and how.
    computed : bool
        Whether features are computed. To plan runs they need not be: then they are zeros, of their shape and with
        the digest that they would have.

    Returns
    -------
    Dataset
        Of images with features ``(n, F)``, or the outputs ``(n, ...)`` of an earlier layer; of a table with its
        other features and those of each encoded column, ``(n, F0 + columns * F)``. Its digest follows from those
        of the samples and the weights, and from the settings. Features of an encoder are not standardized.

    Raises
    ------
    DataError
        If the samples do not fit the encoder, or there are no weights.
    """
    entry = settings.registered
    weights = entry.digest()
    if entry.reads == "images":
        inputs: list[Inputs] = [_images(dataset, settings)]
        names: tuple[str, ...] = ()
        origins: tuple[str, ...] = ()
        before: list[Tensor] = []
    elif not settings.columns:
        raise DataError(f"data.encode: missing; name the column of text that encoder {entry.name} reads")
    else:
        inputs = [_texts(dataset, column, settings) for column in settings.columns]
        origins = tuple(column for column in settings.columns for _ in range(entry.features))
        names = tuple(
            f"{column}_{place + 1}" for column in settings.columns for place in range(entry.features)
        )
        before = [dataset.x]
    if computed:
        made = [_scaled(_features(one, weights, settings), settings.norm) for one in inputs]
    else:
        made = [torch.zeros(len(dataset), *_shape(settings)) for _ in inputs]
    added = torch.zeros(len(origins), dtype=torch.bool)
    return replace(
        dataset,
        x=torch.cat([*before, *made], 1),
        source=f"{dataset.source}, {entry.name}",
        digest=_digest(dataset, weights, settings),
        features=(*dataset.features, *names),
        origins=(*dataset.origins, *origins),
        continuous=None if dataset.continuous is None else torch.cat([dataset.continuous, added]),
        encoded=f"{entry.name}, of digest sha256:{weights[:16]}",
    )


def _digest(dataset: Dataset, weights: str, settings: EncoderSettings) -> str:
    """Return the digest of the features: of the samples, the weights and the settings."""
    entry = settings.registered
    parts = [
        dataset.digest,
        entry.name,
        entry.version,
        weights,
        settings.length,
        settings.columns,
        settings.norm,
        *filter(None, [settings.until]),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def blank(dataset: Dataset, settings: EncoderSettings) -> Dataset:
    """Return images as if they were encoded, with features of zeros, to plan without data.

    Weights are needed only for an encoder that stops before its last layer.
    """
    return replace(dataset, x=torch.zeros(len(dataset), *_shape(settings)), encoded=settings.encoder)


def _shape(settings: EncoderSettings) -> tuple[int, ...]:
    """Return the shape of the features of one image, or of one column of text."""
    if settings.until is None:
        return (settings.registered.features,)
    with torch.no_grad():
        return tuple(settings.network()(torch.zeros(1, 3, settings.length, settings.length)).shape[1:])


@dataclass(frozen=True)
class Inputs:
    """Different samples that an encoder reads.

    Attributes
    ----------
    digest : str
        SHA-256 of them.
    count : int
        How many there are.
    place : Tensor or None
        Which of them a sample is, ``(n,)``; None if they are all samples in their order.
    batches : Callable
        Yields their places and what the encoder is called with.
    """

    digest: str
    count: int
    place: Tensor | None
    batches: Callable[[], Iterator[tuple[NDArray[np.int64], Arguments]]]


def _images(dataset: Dataset, settings: EncoderSettings) -> Inputs:
    """Return images, in the size and the channels of an encoder."""
    x, name = dataset.x, settings.encoder
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise DataError(
            f"data.encoder: {name} reads images, and samples of {dataset.name} have the shape {tuple(x.shape[1:])}"
        )
    if x.min() < 0 or x.max() > 1:
        raise DataError(
            f"data.encoder: {name} reads pixels in [0, 1], and those of {dataset.name} are {x.min():.3g} to "
            f"{x.max():.3g}; its reader must scale them, or take normalize='none'"
        )
    side = settings.length

    def batches() -> Iterator[tuple[NDArray[np.int64], Arguments]]:
        for start in range(0, len(x), BATCH):
            images = x[start : start + BATCH].expand(-1, 3, -1, -1)
            if images.shape[-2:] != (side, side):
                images = F.interpolate(images, (side, side), mode="bilinear", antialias=True)
            yield np.arange(start, start + len(images)), (images,)

    digest = hashlib.sha256(str(tuple(x.shape)).encode())
    digest.update(x.contiguous().numpy().data)
    return Inputs(digest.hexdigest(), len(x), None, batches)


def _texts(dataset: Dataset, column: str, settings: EncoderSettings) -> Inputs:
    """Return the different texts of a raw column."""
    columns = dataset.columns
    if dataset.x.ndim != 2 or column not in columns:
        raise DataError(f"data.encode: {dataset.name} has no column {column!r}; {nearest(column, columns)}")
    cells: Column = columns[column]
    if cells.dtype.kind not in "OU":
        raise DataError(
            f"data.encode: the column {column!r} of {dataset.name} holds numbers; give one of text"
        )
    every = [str(cell) for cell in cells]  # an array of texts would take the longest for each
    texts = list(dict.fromkeys(every))
    numbers = {text: number for number, text in enumerate(texts)}
    by_length = np.argsort([len(text) for text in texts], kind="stable")  # a batch is as long as its longest

    def batches() -> Iterator[tuple[NDArray[np.int64], Arguments]]:
        for start in range(0, len(texts), BATCH):
            places = by_length[start : start + BATCH]
            yield places, ([texts[place] for place in places], settings.length)

    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    return Inputs(digest, len(texts), torch.tensor([numbers[text] for text in every]), batches)


def _features(inputs: Inputs, weights: str, settings: EncoderSettings) -> Tensor:
    """Return the features of all samples ``(n, F)``, from the cache or computed and put there."""
    entry = settings.registered
    if settings.code is None:
        warn_once(
            f"features of {entry.name} are not kept, as nothing tells whether its code has changed; move it to a "
            "file and load that as a plugin"
        )
        found = _computed(inputs, weights, settings)
    else:
        code = [code_digest([str(Path(__file__).parent)]), settings.code, entry.version, torch.__version__]
        key = [inputs.digest, entry.name, weights, settings.length, code, *filter(None, [settings.until])]
        found = _cached(inputs, weights, settings, hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32])
    rows = torch.from_numpy(found)
    return rows if inputs.place is None else rows[inputs.place]


def _cached(inputs: Inputs, weights: str, settings: EncoderSettings, key: str) -> NDArray[np.float32]:
    """Return the features that are kept under a key, or compute and keep them."""
    entry = settings.registered
    target = cache_dir("features") / f"{entry.name}-{key}.npy"
    try:
        kept: NDArray[np.float32] = np.load(find_named(target), allow_pickle=False)
        return kept
    except SourceError as reason:
        if any(target.parent.glob(f"{target.stem}-*")):
            warn_once(f"features of {entry.name} are computed anew, as the cache cannot be used: {reason}")
    computed = _computed(inputs, weights, settings)
    try:
        store_named(target, lambda part: np.save(part, computed))
    except SourceError as error:
        warn_once(f"features of {entry.name} are not kept: {error}")
    return computed


def _computed(inputs: Inputs, weights: str, settings: EncoderSettings) -> NDArray[np.float32]:
    """Compute the features of different samples, ``(count, F)``, by weights of a digest."""
    from tqdm import tqdm  # features are mostly computed already

    entry, module = settings.registered, settings.network()
    shape: tuple[int, ...] | None = None if settings.until else (entry.features,)
    out = np.empty((0,), np.float32)
    what = f"{entry.name}: {entry.reads}"
    done, lines = 0, 0
    with torch.no_grad(), tqdm(total=inputs.count, desc=what, unit="", disable=None) as bar:
        for places, arguments in inputs.batches():
            rows = _called(entry, module, arguments, len(places), shape)
            if not done:
                shape = rows.shape[1:]
                out = np.empty((inputs.count, *shape), np.float32)
                _check_alone(entry, module, arguments, rows)
            out[places] = rows
            done += len(places)
            bar.update(len(places))
            if done * LINES // inputs.count > lines:
                lines = done * LINES // inputs.count
                log.info("%s, %d of %d", what, done, inputs.count)
    if entry.digest() != weights:
        raise DataError(
            f"encoder {entry.name!r}: its weights have changed while features were computed; run it again"
        )
    return out


def _called(
    entry: Encoder, module: nn.Module, arguments: Arguments, count: int, shape: tuple[int, ...] | None
) -> NDArray[np.float32]:
    """Return the features of some samples, of a shape or of any; raise DataError if a module fails."""
    try:
        rows = module(*arguments)
    except DataError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise DataError(f"encoder {entry.name!r} fails: {type(error).__name__}: {error}") from error
    return _checked(entry, rows, count, shape)


def _check_alone(entry: Encoder, module: nn.Module, arguments: Arguments, rows: NDArray[np.float32]) -> None:
    """Raise DataError unless the first sample of a batch has the features that it has alone."""
    samples, *size = arguments
    alone = _called(entry, module, (samples[:1], *size), 1, rows.shape[1:])
    if np.abs(alone[0] - rows[0]).max() > TOLERANCE * np.abs(rows).max():
        raise DataError(
            f"encoder {entry.name!r}: the features of a sample depend on others of its batch, or on chance; then "
            "those of one client tell of another's samples"
        )


def _checked(entry: Encoder, rows: object, count: int, shape: tuple[int, ...] | None) -> NDArray[np.float32]:
    """Return what a module has made of some samples; raise DataError if these are no features."""
    if shape is None and isinstance(rows, Tensor):
        shape = rows.shape[1:]
    expected = (count, *(shape or ()))
    if not isinstance(rows, Tensor) or tuple(rows.shape) != expected or not rows.is_floating_point():
        made = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise DataError(
            f"encoder {entry.name!r} must make features {expected} of {count} samples, given {made}"
        )
    if not rows.isfinite().all():
        raise DataError(f"encoder {entry.name!r} makes features that are not finite")
    features: NDArray[np.float32] = rows.float().numpy()
    return features


def _scaled(rows: Tensor, norm: float | None) -> Tensor:
    """Return rows ``(n, F)`` of some norm; a row of zeros stays."""
    return rows if norm is None else F.normalize(rows, dim=-1).mul_(norm)
