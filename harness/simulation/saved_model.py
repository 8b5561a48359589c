"""Trained models in files, and predictions with them.

A file is in the format safetensors: the model's parameters by their names, with what is needed to apply it (the
spec, the columns and their scales, classes, names of clients) and what is known of it (the run, the privacy
statement) as metadata. Reading one runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from datasets.dataset import Column
from datasets.encoding import MISSING_CATEGORY, OTHER, Cells
from datasets.federation import Inputs
from datasets.files import FORMATS
from harness import models
from harness.core.flat_model import Ravel
from harness.core.registry import UserError, unknown
from harness.simulation.build import Setup
from harness.simulation.simulation import Simulation
from harness.storage import seals
from harness.storage.files import Damaged, json_value, open_file, replacing, writing
from harness.storage.shapes import SavedMetadata, shaped

FORMAT = "fedfrontier 1"
SCORED = ("auroc",)  # problems whose models score, without a class
CHUNK = 65_536  # rows at once


def check_savable(setup: Setup) -> None:
    """Refuse runs whose model cannot be saved.

    Raises
    ------
    UserError
        If there is no model that can be applied to a table, or one for each client that no mechanism protects.
    """
    problem = setup.problem
    if problem.predict is None or problem.module is None or problem.kind == "vertical":
        raise UserError(
            f"--save-model: problem {problem.name} has no model that one party could apply to a table"
        )
    if setup.federation.inputs is None:
        raise UserError("--save-model: models of tables are saved; images and text have no columns to name")
    # Nodes of a graph release messages; their models, and the mean of these, hold what has no noise.
    nodes = setup.privacy is not None and setup.algorithm.meta.gossip
    if nodes or Simulation.from_setup(setup).keeps_models():
        raise UserError(
            f"--save-model: algorithm {setup.spec.algorithm['name']} leaves every client a model of its own, which "
            "the budget does not protect; a file of them would release the data"
        )


def save_model(setup: Setup, run: Simulation, number: int, line: Mapping[str, Any], path: Path) -> None:
    """Write the model of a finished run.

    Parameters
    ----------
    setup : Setup
        The run.
    run, number : Simulation, int
        Where its state is, in a stack.
    line : Mapping
        Its last evaluation.
    path : Path
        The file.
    """
    module, federation = setup.problem.module, setup.federation
    assert module is not None and federation.inputs is not None
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    size = sum(shape.numel() for shape in shapes.values())
    model = run.personal(number)[..., :size].contiguous()
    pieces = model.split([shape.numel() for shape in shapes.values()], -1)
    tensors = {
        name: piece.reshape(*piece.shape[:-1], *shape).contiguous()
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }
    inputs = federation.inputs
    about = {
        "format": FORMAT,
        "run": setup.id,
        "spec": setup.spec.model_dump(mode="json"),
        "features": inputs.features,
        "origins": inputs.origins,
        "shift": inputs.shift.tolist(),
        "scale": inputs.scale.tolist(),
        "classes": federation.classes,
        "label": [federation.mean, federation.std],
        "clients": list(federation.names) if model.ndim > 1 else [],
        "source": federation.source,
        "digest": federation.digest,
        "metrics": line["metrics"],
        "privacy": line["privacy"],
    }
    with writing(path), replacing(path, durable=True) as temporary:
        temporary.write_bytes(save(tensors, {name: json.dumps(value) for name, value in about.items()}))


@dataclass(frozen=True)
class SavedModel:
    """A model read from a file.

    Attributes
    ----------
    tensors : dict[str, Tensor]
        Parameters by name; with a leading axis of clients if each has a model.
    about : dict
        The metadata.
    """

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> SavedModel:
        """Read a file, or the model of a run's folder.

        Raises
        ------
        UserError
            If it is no such file, or is not the one that the run in its folder has written.
        """
        path = path / "model.safetensors" if path.is_dir() else path
        if not path.exists():
            raise UserError(
                f"{path} does not exist; give the folder of a run, DIR/runs/ID, that was made with --save-model"
            )
        with open_file(path.resolve()):  # not a pipe, which would wait
            _check_sealed(path)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = {name: json_value(value.encode()) for name, value in metadata.items()}
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        if about.get("format") != FORMAT:
            raise UserError(f"{path} holds no model of this version: format {about.get('format')!r}")
        shaped(path, SavedMetadata, about)
        return cls(tensors, about)

    @property
    def inputs(self) -> Inputs:
        """The features."""
        about = self.about
        shift, scale = (torch.tensor(about[name], dtype=torch.float64) for name in ("shift", "scale"))
        return Inputs(tuple(about["features"]), tuple(about["origins"]), shift, scale)

    def function(self, client: str | None = None) -> tuple[Ravel, Tensor]:
        """Return the network and its parameters as a vector, of one client if each has a model.

        Raises
        ------
        UserError
            If a client is needed, not needed, or unknown.
        """
        spec = self.about["spec"]
        part, kind = dict(spec["model"]), spec["problem"].get("kind")
        if part["name"] not in models.names():
            raise unknown("model", part["name"], models.names())
        outputs = 1 if kind in SCORED or not self.about["classes"] else len(self.about["classes"])
        net = models.build(part.pop("name"), (len(self.about["features"]),), outputs, part)
        if "latent" in spec["algorithm"] and isinstance(net, models.Net):
            net = models.encoder(net, spec["algorithm"]["latent"])
        ravel = Ravel(net)
        shapes = dict(zip(ravel.names, ravel.shapes, strict=True))
        own = {name: tensor.ndim - len(shapes.get(name, ())) for name, tensor in self.tensors.items()}
        if self.tensors.keys() != shapes.keys() or len({*own.values()}) != 1:
            raise UserError("the file's parameters are not those of the model that its spec names")
        if not own[ravel.names[0]]:
            if client is not None:
                raise UserError(f"--client {client}: all clients have one model")
            return ravel, torch.cat([self.tensors[name].flatten() for name in ravel.names])
        count = len(self.tensors[ravel.names[0]])
        names = self.about["clients"] or [str(number) for number in range(count)]
        if client is None:
            raise UserError(f"--client: every client has a model; give one of {', '.join(names[:10])}")
        if client not in names:
            raise unknown("client", client, names)
        place = names.index(client)
        return ravel, torch.cat([self.tensors[name][place].flatten() for name in ravel.names])

    @torch.no_grad()
    def predict(self, columns: Mapping[str, Cells], client: str | None = None) -> dict[str, np.ndarray]:
        """Apply the model to the rows of a table.

        Parameters
        ----------
        columns : Mapping[str, Cells]
            The raw columns that it was trained on; others are ignored.
        client : str, optional
            Whose model, if every client has one.

        Returns
        -------
        dict
            ``prediction`` and a column of probabilities for each class; for numbers ``prediction``; for models that
            only rank ``score``. Each has a value for each row.

        Raises
        ------
        UserError
            If a column is missing or has a missing cell or text where numbers were.
        """
        ravel, model = self.function(client)
        x = ((_features(self.inputs, columns) - self.inputs.shift) / self.inputs.scale).to(model.dtype)
        outputs = torch.cat([ravel(model, rows) for rows in x.split(CHUNK)]).double()
        if self.about["spec"]["problem"].get("kind") in SCORED:
            return {"score": outputs.squeeze(-1).numpy()}
        if not self.about["classes"]:
            mean, std = self.about["label"]
            return {"prediction": (outputs.squeeze(-1) * std + mean).numpy()}
        shares = outputs.softmax(-1).numpy()
        classes = np.array(self.about["classes"])
        return {
            "prediction": classes[shares.argmax(-1)],
            **{f"p({name})": shares[:, place] for place, name in enumerate(classes)},
        }


def _check_sealed(path: Path) -> None:
    """Raise Damaged if a model is beside the end of its run and is not what that run has written."""
    with suppress(FileNotFoundError):
        _, seal = seals.read_sealed(path.parent / "done.json")
        if seal and path.name not in seal:
            raise Damaged(
                path, "is not sealed by done.json, so the run has not written it; --save-model does"
            )
        if seal and seal[path.name] != seals.checksum(path):
            raise Damaged(path)


def _features(inputs: Inputs, columns: Mapping[str, Cells]) -> Tensor:
    """Return the features ``(n, F)`` of raw columns, before they are shifted and scaled."""
    found: list[Tensor] = []
    for name, origin in zip(inputs.features, inputs.origins, strict=True):
        if origin not in columns:
            raise unknown("column of the table", origin, columns)
        if name == origin:
            found.append(_numbers(origin, columns[origin]))
        else:
            known = [other for other, of in zip(inputs.features, inputs.origins, strict=True) if of == origin]
            found.append(torch.from_numpy(_values(origin, columns[origin], known) == name).double())
    return torch.stack(found, -1)


def _numbers(name: str, cells: Cells) -> Tensor:
    """Return a column of numbers."""
    if cells.missing.any():
        raise UserError(
            f"column {name!r} has no value in row {int(cells.missing.argmax()) + 1} below the header; fill it"
        )
    if not cells.numeric:
        raise UserError(f"column {name!r} needs numbers, as in training; given {cells.values[0]!r}")
    return torch.from_numpy(cells.values.astype(np.float64))


def _values(name: str, cells: Cells, known: Sequence[str]) -> Column:
    """Return the feature for each cell; of a value that training had not, "other", which may be none."""
    texts = [f"{value:.15g}" for value in cells.values] if cells.numeric else cells.values.tolist()
    made = [
        f"{name}={MISSING_CATEGORY if gone else text}"
        for text, gone in zip(texts, cells.missing, strict=True)
    ]
    gone = next((row for row, one in enumerate(made) if cells.missing[row] and one not in known), None)
    if gone is not None:
        raise UserError(f"column {name!r} has no value in row {gone + 1} below the header; fill it")
    return np.array([one if one in known else f"{name}={OTHER}" for one in made], dtype=object)


def read_rows(path: Path) -> tuple[dict[str, Cells], int]:
    """Return the columns of a table in a file, CSV, Parquet or Arrow by its suffix, and the number of rows.

    Raises
    ------
    UserError
        If the suffix is none of theirs, or there are no rows; DataError if the file cannot be read.
    """
    for kind in FORMATS.values():
        if path.suffix.lower() in kind.suffixes:
            content = kind.read(path)
            if not content.rows:
                raise UserError(f"{path} has no rows below its header")
            return {name: make(False) for name, make in content.columns.items()}, content.rows
    every = [suffix for kind in FORMATS.values() for suffix in kind.suffixes]
    raise unknown("kind of table", path.suffix, every)
