"""Dense layers, products of two activations, embeddings and recurrent layers, as Keras has them."""

from __future__ import annotations

from math import prod
from typing import Any

from microbench.backends.tensorflow_call import Call, Maker


def _dense(c: Call) -> Any:
    a = c.operation.attributes
    inside, made = a["in_features"], a["out_features"]
    if c.shape[-1] == inside and c.out == (*c.shape[:-1], made):
        return c.layer("Dense", made, use_bias=a["bias"])(c.x)
    rows, own = divmod(prod(c.shape), inside)
    if own == 0 and rows * made == prod(c.out):  # an einsum over or into several axes
        flat = c.reshape(c.x, (rows, inside))
        return c.reshape(c.layer("Dense", made, use_bias=a["bias"])(flat), c.out)
    groups = rows * made // prod(c.out)  # weights of their own for each place along an axis
    if own or groups < 1 or rows % groups or made % groups:
        raise ValueError(f"no product of {inside} features goes from {c.shape} to {c.out}")
    apart = c.reshape(c.x, (rows // groups, groups, inside))
    grouped = c.layer("EinsumDense", "rgi,gio->rgo", (groups, made // groups))(apart)
    return c.reshape(grouped, c.out)


def _embedding(c: Call) -> Any:
    a = c.operation.attributes
    return c.layer("Embedding", a["rows"], a["out_features"])(c.x)


def _recurrent(name: str) -> Maker:
    def make(c: Call) -> Any:
        a = c.operation.attributes
        options = {"use_bias": a["bias"], "return_sequences": a.get("sequences", len(c.out) > 2)}
        if name == "GRU":
            options["reset_after"] = a.get("bias_vectors", 2) == 2
        layer = c.layer(name, a["units"], return_state=len(c.outs) > 1, **options)
        x = c.x
        if len(c.shape) != 3:
            x = c.reshape(x, (c.shape[0], a["timesteps"], a["in_features"]))
        return layer(x, initial_state=c.inputs[1:]) if len(c.inputs) > 1 else layer(x)

    return make


def _matmul(c: Call) -> Any:
    """A product over `contracted`: of matrices, of attention (heads beside the features), of any axes."""
    ops, summed = c.keras.ops, c.operation.attributes["contracted"]
    (left, right), out = c.ins[:2], c.out
    a, b = c.inputs[:2]
    if len(left) > 1 and len(right) > 1 and left[-1] == right[-2] == summed:
        with_rows = (*left[:-1], right[-1])
        if with_rows == out or (len(out) == len(left) and with_rows[-2:] == out[-2:]):
            return ops.matmul(a, b)
    if len(left) == len(right) == 3 and len(out) == 4:
        return _scores(c, summed)
    if len(left) == 4 and len(right) == len(out) == 3 and left[-1] == right[1] == summed:
        return _mixed(c)
    return _any_product(c, summed)


def _scores(c: Call, size: int) -> Any:
    """Queries (batch, steps, heads x size) with keys, as Keras' attention has it."""
    _, heads, steps, others = c.out
    rows = c.shape[0]
    query = c.reshape(c.x, (rows, steps, heads, size))
    key = c.reshape(c.inputs[1], (rows, others, c.ins[1][-1] // size, size))
    return c.keras.ops.einsum("btnh,bsnh->bnts", query, _for_heads(c, key, heads))


def _mixed(c: Call) -> Any:
    """Values (batch, steps, heads x size) weighed by (batch, heads, steps, steps of the values)."""
    rows, heads, steps, others = c.shape
    size = c.out[-1] // heads
    value = c.reshape(c.inputs[1], (rows, others, c.ins[1][-1] // size, size))
    mixed = c.keras.ops.einsum("bnts,bsnh->btnh", c.x, _for_heads(c, value, heads))
    return c.reshape(mixed, (rows, steps, heads * size))


def _for_heads(c: Call, x: Any, heads: int) -> Any:
    """Keys or values of fewer heads than the queries, repeated."""
    own = x.shape[2]
    return x if own == heads else c.keras.ops.repeat(x, heads // own, axis=2)


def _any_product(c: Call, summed: int) -> Any:
    """A batch of products with the elements and the multiplications that the Graph says."""
    left, right, out = (prod(s) for s in (*c.ins[:2], c.out))
    batch, rest = divmod(left * right, out * summed**2)
    if rest or not batch or left % (batch * summed) or right % (batch * summed):
        raise ValueError(f"no product over {summed} of {c.ins} makes {c.out}")
    rows, columns = left // (batch * summed), right // (batch * summed)
    a = c.reshape(c.x, (batch, rows, summed))
    b = c.reshape(c.inputs[1], (batch, summed, columns))
    return c.reshape(c.keras.ops.matmul(a, b), c.out)


MAKERS: dict[str, Maker] = {
    "dense": _dense,
    "matmul": _matmul,
    "embedding": _embedding,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "simple_rnn": _recurrent("SimpleRNN"),
}
"""Kind of operation -> how it is built."""
