"""Spaces from functions: which positions interact is found, and every candidate's counts are exact."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.io.progress import Progress
from lolat.nas import Space
from lolat.nas.decomposition import Decomposer, UndecomposedError

CHAIN = {
    "first": (8, 16), "second": (8, 12, 40), "third": (16, 32), "kernel": (3, 5), "act": ("relu", "silu"),
}  # fmt: skip


def chain(first: int, second: int, third: int, kernel: int, act: str) -> Graph:
    """Three convolutions, the last with a kernel of its choice."""
    builder = GraphBuilder("chain")
    layers = Layers(builder)
    x = layers.conv(builder.input((1, 24, 24, 3)), first, 3)
    x = layers.same(act, layers.conv(x, second, 3))
    x = layers.same("batch_norm", layers.conv(x, third, kernel))
    return builder.build([layers.dense(layers.flatten(layers.global_pool(x)), 10)])


CONVOLUTIONS = {"size": (16, 32, 48), "a": (1, 3), "b": (1, 3), "c": (1, 3)}


@pytest.mark.parametrize(
    ("function", "choices", "pairs"),
    [
        (chain, CHAIN, ["first second", "second third kernel", "second act"]),
        (lambda **p: convolutions(**p), CONVOLUTIONS, ["size a", "size b", "size c"]),
    ],
)
def test_positions_that_interact_are_found(
    function: Any, choices: dict[str, Any], pairs: list[str]
) -> None:
    space = Space.from_factory(function, choices)
    found = space.decomposition
    assert {frozenset(names) for names in found.together} == {frozenset(p.split()) for p in pairs}
    assert (found.deviation, found.column) == (0.0, None)
    assert max(found.built, found.checked) <= space.size
    assert set(space.values([0] * len(choices))) == set(choices)
    rows = space.decode(np.arange(space.size))
    for batch_size in (1, 16, 700):  # not only those that are checked
        whole = [count(function(**space.values(row))).total(batch_size) for row in rows]
        np.testing.assert_array_equal(space.counts(rows, batch_size), np.array(whole))


def numbered(choices: tuple[int, ...], count: int) -> dict[str, tuple[int, ...]]:
    return {f"p{i}": choices for i in range(count)}


def convolutions(size: int, **kernels: int) -> Graph:
    """One behind the other, on an image of `size`."""
    builder = GraphBuilder("convolutions")
    layers, x = Layers(builder), builder.input((1, size, size, 8))
    for kernel in kernels.values():
        x = layers.conv(x, 8, kernel)
    return builder.build([x])


def test_each_network_is_built_once_and_far_fewer_than_all() -> None:
    calls: Counter[tuple[int, ...]] = Counter()

    def independent(**kernels: int) -> Graph:
        calls[tuple(kernels.values())] += 1
        return convolutions(16, **kernels)

    space = Space.from_factory(independent, numbered((1, 3, 5), 10))
    assert space.size == 59_049
    assert space.prepare() is not None
    again = ((1,) * 10, [*calls][-1])  # the first and the last: are they the same each time?
    assert calls == dict.fromkeys(calls, 1) | dict.fromkeys(again, 2)
    assert len(calls) == space.decomposition.built < 80
    assert space.decomposition.together == ()
    rows = space.sample(30, seed=9)
    whole = [count(independent(**space.values(row))).total() for row in rows]
    np.testing.assert_array_equal(space.counts(rows), np.array(whole))


def test_a_choice_that_the_function_does_not_use_is_told() -> None:
    def net(kernel: int, unused: int) -> Graph:
        return convolutions(16, kernel=kernel)

    told = Space.from_factory(net, {"kernel": (1, 3), "unused": (1, 2)}).decomposition
    used = Space.from_factory(net, {"kernel": (1, 3), "unused": (1,)}).decomposition
    assert (told.idle, used.idle) == (("unused",), ())
    assert "no count changes by unused" in told.words()
    assert "no count" not in used.words()


@pytest.mark.parametrize("choices", [(1, 3, 1), ("a", "a"), (None, None)])
def test_a_choice_twice_is_refused(choices: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="position 'kernel' has a choice twice"):
        Space.from_factory(lambda kernel: convolutions(16, kernel=kernel), {"kernel": choices})


class Stages(Progress):
    """Keeps the total, the steps done before, and those done by the end of each stage."""

    def __init__(self) -> None:
        self.stages: list[list[int]] = []

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.stages.append([total, done, done])

    def step(self) -> None:
        self.stages[-1][2] += 1


def test_a_stage_announces_as_many_networks_as_it_builds_or_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The positions interact, and how many networks tell that is known at the end."""
    shown = Stages()
    space = Space.from_factory(chain, CHAIN)
    space.prepare(shown)
    befores, ends = ([stage[at] for stage in shown.stages] for at in (1, 2))
    assert (befores, ends[-1]) == ([0, *ends[:-1]], space.decomposition.built)  # one count of all
    assert {total for total, *_ in shown.stages} == {0}

    def split(decomposer: Decomposer, progress: Progress) -> None:
        decomposer.networks.announce(progress, 0)
        decomposer.networks.number((0, 0))
        raise UndecomposedError("all choices interact")

    monkeypatch.setattr(Decomposer, "_split", split)
    shown = Stages()
    whole = Space.from_factory(lambda a, b: convolutions(8, a=a, b=b), {"a": (1, 3), "b": (1, 3)})
    whole.prepare(shown)
    assert shown.stages == [[0, 0, 1], [4, 1, 4]]


def test_a_change_of_a_choice_in_the_middle_is_another_space() -> None:
    def of(kernels: dict[int, int]) -> Space:
        def built(a: int, b: int) -> Graph:
            return convolutions(16, a=kernels[a], b=kernels[b])

        return Space.from_factory(built, {"a": (1, 2, 3), "b": (1, 2, 3)})

    same, other = {1: 1, 2: 3, 3: 5}, {1: 1, 2: 7, 3: 5}
    assert of(same).fingerprint == of(dict(same)).fingerprint != of(other).fingerprint


def test_the_advice_of_a_reader_is_cut_nowhere() -> None:
    advice = f"expected {'one, ' * 100}or another size"

    def unread(a: int) -> Graph:
        raise InputError(advice)

    with pytest.raises(InputError, match=advice):
        Space.from_factory(unread, {"a": (1, 2)}).prepare()


def branches(**depths: int) -> Graph:
    """Five branches side by side: the longest path is the deepest one's."""
    builder = GraphBuilder("branches")
    layers, x = Layers(builder), builder.input((1, 16, 16, 8))
    ends = []
    for depth in depths.values():
        y = x
        for _ in range(depth):
            y = layers.same("relu", y)
        ends.append(layers.conv(y, 8, 1))
    while len(ends) > 1:
        ends = [layers.same("add", ends[0], ends[1]), *ends[2:]]
    return builder.build(ends)


def test_what_does_not_decompose_is_refused_with_what_to_do() -> None:
    built: list[int] = []

    def counted(**depths: int) -> Graph:
        built.append(1)
        return branches(**depths)

    with pytest.raises(
        InputError, match=r"\(sums are up to .* position of some that go together, or"
    ):
        Space.from_factory(counted, numbered(tuple(range(1, 13)), 6)).prepare()
    assert len(built) <= 2**6  # with all choices three neighbors alone make a table of 1331
    choices = numbered((8, 9, 10, 11, 12), 6)  # five of them have 3125 combinations
    with pytest.raises(
        InputError, match=r"change its operations in line together .* accept it .*tolerance=0\."
    ) as info:
        Space.from_factory(branches, choices).prepare()
    tolerance = float(str(info.value).rpartition("=")[2].strip(")"))
    found = Space.from_factory(branches, choices, tolerance=tolerance).decomposition
    assert found.column == "serial"
    assert 0.0 < found.deviation <= tolerance


def test_far_off_sums_are_refused_without_an_offer_to_accept_them() -> None:
    """An operation whose channels are the product of six choices: the sum is nowhere near."""

    def product(**widths: int) -> Graph:
        builder = GraphBuilder("product")
        x = builder.input((1, 8, 8, 1))
        return builder.build([Layers(builder).conv(x, int(np.prod([*widths.values()])), 1)])

    with pytest.raises(InputError, match=r"off by .* times the number") as info:
        Space.from_factory(product, numbered((1, 2, 3, 4), 6)).prepare()
    assert "tolerance" not in str(info.value)


def test_a_space_of_few_candidates_is_tabulated_whole() -> None:
    """More positions interact than a larger space's tables have; none is built in both ways."""
    calls: Counter[tuple[int, ...]] = Counter()

    def counted(**depths: int) -> Graph:
        calls[tuple(depths.values())] += 1
        return branches(**depths)

    space = Space.from_factory(counted, numbered((1, 12), 6))
    rows = space.decode(np.arange(64))
    counts = space.counts(rows, 3)
    assert sum(calls.values()) <= len(calls) + 4  # two that are built again, in each way
    assert len(calls) == space.decomposition.built <= 64
    whole = [count(branches(**space.values(row))).total(3) for row in rows]
    np.testing.assert_array_equal(counts, np.array(whole))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"first": (8,)}, "missing a required argument: 'second'; its choices are of first"),
        (CHAIN | {"depth": (1, 2)}, "got an unexpected keyword argument 'depth'"),
    ],
)
def test_choices_that_the_function_does_not_take_are_refused_at_once(
    choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=rf"chain \(test_decomposition.py, line \d+\): {words}"):
        Space.from_factory(chain, choices)


def test_an_input_size_that_lacks_is_asked_for() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"give Space.from_factory\(..., input_size=224\)"):
        Space.from_factory(lambda w: torch.nn.Conv2d(3, w, 3), {"w": (3, 4)}).prepare()


def test_a_function_that_wants_a_gpu_needs_none_and_says_nothing(
    recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch warns of a layer without weights; prints of the function are no answer."""
    torch = pytest.importorskip("torch")

    def on_gpu(width: int) -> Any:
        print("made")
        torch.nn.Conv2d(3, 0, 3)
        return torch.nn.Conv2d(3, width, 3, padding=1).cuda()

    space = Space.from_factory(on_gpu, {"width": (8, 16)}, input_size=16)
    assert [count(space.network((row,))).total().flops for row in (0, 1)] == [
        9 * 3 * width * 16**2 for width in (8, 16)
    ]
    out, err = capsys.readouterr()
    assert (out, err) == ("", "made\nmade\n")
    assert not recwarn.list


def test_inputs_of_the_function_are_its_choice_and_need_no_input_size() -> None:
    """A convolution 3 x 3 of 3 channels to 8: 9 x 3 x 8 multiply-accumulates at each place."""
    torch = pytest.importorskip("torch")

    def sized(side: int) -> Any:
        return torch.nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, side, side)

    space = Space.from_factory(sized, {"side": (16, 32)})
    flops = [count(space.network((row,))).total().flops for row in (0, 1)]
    assert flops == [9 * 3 * 8 * side**2 for side in (16, 32)]
    with pytest.raises(InputError, match=r"sized .* expected no input_size"):
        Space.from_factory(sized, {"side": (16, 32)}, input_size=64).prepare()


def test_a_function_of_other_networks_each_time_is_refused() -> None:
    """Sizes are drawn, or rise with the calls; the candidates are few, or too many to build all."""
    draw, made = random.Random(2), itertools.count()

    def drawn(**kernels: int) -> Graph:
        return convolutions(draw.randrange(8, 512), **kernels)

    def late(**kernels: int) -> Graph:
        return convolutions(16 if next(made) < 3 else 32, **kernels)

    for function, positions in ((drawn, 2), (late, 2), (drawn, 10)):
        words = (
            rf"{function.__name__} \(.* returns another network each time for p0=[135], p1=[135]"
        )
        with pytest.raises(InputError, match=words) as error:
            Space.from_factory(function, numbered((1, 3, 5), positions)).prepare()
        assert (error.value.code, error.value.exit_code) == ("random-networks", 2)


def test_too_many_networks_are_refused_before_they_are_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[int] = []

    def wide(**widths: int) -> Graph:
        built.append(1)
        return chain(*widths.values(), 3, "relu")  # type: ignore[arg-type]

    for most, task in ((100, "takes 148 networks"), (200, "a table of")):
        monkeypatch.setattr("lolat.nas.candidates.MOST_NETWORKS", most)
        with pytest.raises(InputError, match=task):
            Space.from_factory(wide, numbered(tuple(range(8, 408, 8)), 3)).prepare()
        assert bool(built) == (most == 200)


def test_a_function_that_fails_is_named_with_its_choices() -> None:
    def fragile(a: int, b: int) -> Graph:
        if (a, b) == (2, 3):
            raise ValueError("no such network")
        return chain(8, 8, 16, 3, "relu")

    with pytest.raises(InputError, match=r"fragile .* failed for a=2, b=3: .*no such network"):
        Space.from_factory(fragile, {"a": (1, 2), "b": (1, 3)}).prepare()
    with pytest.raises(InputError):
        Space.from_factory(lambda a: object(), {"a": (1, 2)}).prepare()
