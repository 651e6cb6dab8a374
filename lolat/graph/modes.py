"""How a device runs networks: in which data type, compiled or not, with channels last in memory or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lolat.errors import InputError

FLOAT32, AMP, FLOAT16, BFLOAT16 = "float32", "amp", "float16", "bfloat16"
DTYPES = {
    FLOAT32: FLOAT32, "fp32": FLOAT32, "float": FLOAT32,
    AMP: AMP, "amp_bf16": AMP, "amp_bfloat16": AMP, "amp_fp16": AMP, "amp_float16": AMP,
    FLOAT16: FLOAT16, "fp16": FLOAT16, "half": FLOAT16,
    BFLOAT16: BFLOAT16, "bf16": BFLOAT16,
}  # fmt: skip
"""What people call a data type -> what it is called here. `amp`: PyTorch's autocast, weights in float32."""
PASSES = {"": False, "inference": False, "training": True}
_COMPILED = frozenset(["dynamo", "compile", "compiled", "inductor"])
_LAST = frozenset(["nhwc", "channels_last"])
YES, NO = frozenset(["yes", "true", "1"]), frozenset(["", "no", "false", "0"])


@dataclass(frozen=True)
class Mode:
    """`dtype`: one of DTYPES' values; `compiled`: by torch.compile; `channels_last`: images in memory;
    `training`: forward and backward, not the forward pass of inference.
    """

    dtype: str = FLOAT32
    compiled: bool = False
    channels_last: bool = False
    training: bool = False

    @property
    def inference(self) -> Mode:
        """The same device, forward alone."""
        return replace(self, training=False)

    @property
    def product_bytes(self) -> int:
        """Bytes of an element that products read and write."""
        return 4 if self.dtype == FLOAT32 else 2

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a model file."""
        return {
            "dtype": self.dtype,
            "compiled": self.compiled,
            "channels_last": self.channels_last,
            "training": self.training,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Mode:
        """Read what `to_dict` wrote; what is not there is as of a device that somebody just uses."""
        return cls(
            str(document.get("dtype", FLOAT32)),
            bool(document.get("compiled", False)),
            bool(document.get("channels_last", False)),
            bool(document.get("training", False)),
        )

    @classmethod
    def of_file(cls, name: str, otherwise: Mode | None = None) -> Mode:
        """What the name of a table says, as timm names its own: infer-amp-nhwc-pt240-...-dynamo.csv.

        `otherwise`: where it says nothing.
        """
        words = re.split(r"[-.]", name.lower())
        dtypes = [DTYPES[w] for w in words if w in DTYPES]
        compiled = not _COMPILED.isdisjoint(words)
        last = not _LAST.isdisjoint(words)
        if not (dtypes or compiled or last or "nchw" in words):
            return otherwise or cls()
        return cls(dtypes[0] if dtypes else FLOAT32, compiled, last, "train" in words)

    def of_row(self, row: Mapping[str, str], where: str) -> Mode:
        """The same with what a row of a table says itself, in columns of these names; InputError."""
        dtype = (row.get("dtype") or "").strip().lower()
        if dtype and dtype not in DTYPES:
            raise InputError(
                f"{where}: dtype is {dtype[:40]!r}; expected one of {', '.join(DTYPES)}"
            )
        return Mode(
            DTYPES[dtype] if dtype else self.dtype,
            _yes(row, "compiled", self.compiled, where),
            _yes(row, "channels_last", self.channels_last, where),
            _training(row, self.training, where),
        )

    def __str__(self) -> str:
        words = [
            self.dtype,
            "channels last" * self.channels_last,
            "compiled" * self.compiled,
            "training" * self.training,
        ]
        return ", ".join(w for w in words if w)


def _training(row: Mapping[str, str], otherwise: bool, where: str) -> bool:
    """Whether a row is of a training step, as its column `pass` says."""
    text = (row.get("pass") or "").strip().lower()
    if text not in PASSES:
        raise InputError(f"{where}: pass is {text[:40]!r}; expected inference or training")
    return otherwise if not text else PASSES[text]


def _yes(row: Mapping[str, str], column: str, otherwise: bool, where: str) -> bool:
    """What a row says in a column of yes and no; `otherwise` where it has none."""
    if column not in row:
        return otherwise
    text = (row[column] or "").strip().lower()
    if text not in YES | NO:
        raise InputError(f"{where}: {column} is {text[:40]!r}; expected yes or no")
    return text in YES
