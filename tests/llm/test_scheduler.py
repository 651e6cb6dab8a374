"""The scheduler against a naive one that goes step by step, and against theory."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.llm.load import Load
from lolat.llm.scheduler import CONTEXTS, Event, Requests, Rule, StepTable, simulate

LONGEST = 4096.0


def table(token=0.01, start=5.0, head=0.02, context=1e-5, prefill=0.003):
    """Times that are linear in tokens, output tokens and the context of all sequences."""
    contexts = np.arange(CONTEXTS + 1) * LONGEST / CONTEXTS
    return StepTable(
        [start + token * m for m in range(20_000)],
        [head * m for m in range(5_000)],
        [(context * n * contexts).tolist() for n in range(300)].__getitem__,
        (prefill * contexts).tolist(),
        LONGEST / CONTEXTS,
    )


def requests(inputs, outputs, cached=0, **more):
    number = len(outputs)
    columns = (np.broadcast_to(np.array(one), number) for one in (inputs, outputs, cached))
    return Requests(*columns, **more)


def naive(
    rule, arrivals, inputs, outputs, token=0.01, start=5.0, head=0.02, context=1e-5, prefill=0.003
):
    """(first, end) ms of requests: one step at a time, in the order of arrival, without a cache limit."""
    number = len(inputs)
    done, made = [0] * number, [0] * number
    first, end = [0.0] * number, [0.0] * number
    active, t = [], 0.0
    while min(made[i] - outputs[i] for i in range(number)) < 0:
        for i in range(number):
            if i not in active and not end[i] and arrivals[i] <= t and len(active) < rule.sequences:
                active.append(i)
        if not active:
            t = min(arrivals[i] for i in range(number) if not end[i])
            continue
        decoding = [i for i in active if made[i]]
        prompts = [i for i in active if not made[i]]
        if prompts and not rule.mixes:
            decoding = []
        budget, ms, new, ended = max(rule.tokens - len(decoding), 1), 0.0, 0, []
        for i in prompts:
            take = min(inputs[i] - done[i], budget - new)
            if take <= 0:
                break
            ms += prefill * take
            done[i] += take
            new += take
            ended += [i] if done[i] == inputs[i] else []
        ms += start + token * (new + len(decoding)) + head * max(len(decoding) + len(ended), 1)
        ms += context * sum(inputs[i] + made[i] for i in decoding)
        t += ms
        for i in decoding + ended:
            made[i] += 1
            if made[i] == 1:
                first[i] = t
            if made[i] == outputs[i]:
                end[i] = t
                active.remove(i)
    return first, end


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(1, 900), st.integers(1, 60)), min_size=1, max_size=25
    ),
    st.sampled_from([64, 256, 2048]), st.sampled_from([1, 3, 16, 200]), st.booleans(),
)  # fmt: skip
def test_as_a_naive_scheduler_step_by_step(rows, tokens, sequences, mixes):
    rows = sorted(rows)
    arrivals, inputs, outputs = (list(column) for column in zip(*rows, strict=True))
    rule = Rule(tokens=tokens + sequences, sequences=sequences, mixes=mixes)
    found = simulate(
        table(), rule, requests(inputs, outputs, arrivals=np.array(arrivals, float) * 1.37)
    )
    first, end = naive(rule, [1.37 * at for at in arrivals], inputs, outputs)
    assert found.first_ms == pytest.approx(first, rel=1e-6)
    assert found.end_ms == pytest.approx(end, rel=1e-6)


def test_one_request():
    """A prompt of 100 tokens, then nine steps of one token, counted by hand."""
    found = simulate(table(context=0.0), Rule(), requests(100, [10], arrivals=np.array([3.0])))
    first = 3.0 + 5.0 + 0.01 * 100 + 0.02 + 0.003 * 100
    assert found.first_ms[0] == pytest.approx(first)
    assert found.end_ms[0] == pytest.approx(first + 9 * (5.0 + 0.01 + 0.02))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_queue_without_batching_waits_as_theory_says(load):
    """M/D/1 (Pollaczek and Khinchine): the mean wait is load / (2 (1 - load)) services."""
    number, service = 60_000, 8.0
    arrivals = np.cumsum(np.random.default_rng(1).exponential(service / load, number))
    only = StepTable(
        [service] * 40, [0.0] * 40, lambda n: [0.0] * (CONTEXTS + 1), [0.0] * (CONTEXTS + 1), 1.0
    )
    found = simulate(
        only, Rule(sequences=1, tokens=32), requests(1, np.ones(number), arrivals=arrivals)
    )
    wait = float(np.mean(found.first_ms - found.arrival_ms)) - service
    assert wait == pytest.approx(load / (2.0 * (1.0 - load)) * service, rel=0.05)


def test_a_closed_loop_conserves_requests():
    """Little's law: requests at once = rate x time in the system; one starts for each that ends."""
    found = simulate(table(), Rule(), requests(200, np.full(800, 50), at_once=16, front_ms=0.0))
    span = found.end_ms.max()
    inside = float(np.sum(found.end_ms - found.arrival_ms)) / span
    assert inside == pytest.approx(16, rel=0.05)
    order = np.sort(found.end_ms)
    assert np.sort(found.arrival_ms)[16:] == pytest.approx(order[: 800 - 16])


@pytest.mark.parametrize("rate", [0.0, 1.2])
@pytest.mark.parametrize(
    ("prompt", "output", "at_once"), [(2000, 500, 50), (1000, 200, 100), (50, 400, 20)]
)
def test_a_steady_load_is_as_mean_values_say(prompt, output, at_once, rate):
    """A step takes its start, its tokens, and the prompts that come while it runs; Little's law."""
    load = Load(prompt, output, 0 if rate else at_once, rate and 20 * rate * at_once / output)
    context, of_prompt = prompt + output / 2, 0.02 + 0.013 * prompt
    step, rate = 10.0, 1e-3 * load.request_rate
    for _ in range(200):
        rate = 1e-3 * load.request_rate or at_once / (of_prompt + 1.5 * step + (output - 1) * step)
        decoding = rate * (output - 1) * step
        step = 5.0 + (0.03 + 1e-5 * context) * decoding + rate * step * of_prompt
    drawn = load.drawn(at_once, 0.0)
    found = simulate(table(), Rule(), drawn)
    every = (found.end_ms - found.first_ms) / (drawn.outputs - 1)
    times = every[drawn.counted]
    assert not np.isnan(times).any()
    assert times.mean() == pytest.approx(step, rel=0.03)
    assert np.median(times) == pytest.approx(times.mean(), rel=0.03)
    halves = times[: len(times) // 2].mean(), times[len(times) // 2 :].mean()
    assert halves[0] == pytest.approx(halves[1], rel=0.04)


def test_cached_tokens_are_not_computed():
    each = (requests(1000, [5], cached, arrivals=np.zeros(1)) for cached in (0, 900, 1000))
    plain, cached, whole = (simulate(table(), Rule(), one) for one in each)
    assert (plain.first_ms - cached.first_ms)[0] == pytest.approx(900 * 0.013, rel=0.01)
    assert Event(*whole.events[0]).new == 1  # the last token of a prompt is always computed


def test_a_scheduler_that_is_ahead_takes_a_step_more():
    pair = requests([50, 50], [100, 5], arrivals=np.array([0.0, 21.0]))
    now, ahead = (simulate(table(), Rule(is_ahead=one), pair) for one in (False, True))
    assert (ahead.first_ms - now.first_ms)[1] == pytest.approx(5.03, rel=0.02)
    assert now.first_ms[0] == ahead.first_ms[0]  # an idle server waits for nothing


@pytest.mark.parametrize("reserves", [False, True])
def test_a_full_cache(reserves):
    """No more tokens than the cache holds: requests are preempted, or wait where memory is reserved."""
    rule = Rule(cache=2000, reserves=reserves)
    found = simulate(table(), rule, requests(300, np.full(40, 100), at_once=40))
    assert (found.away_ms.max() == 0) == reserves
    assert not np.isnan(found.end_ms).any()
    events = [*map(Event._make, found.events)]
    for event in events:
        held = event.sequences * (event.context + (event.steps - 1) / 2.0)
        assert held <= 2000 + event.sequences
    if reserves:
        assert max(event.sequences for event in events) <= 2000 // 400


@pytest.mark.parametrize(("drafts", "accepted"), [(1, 0.0), (3, 0.7), (4, 1.0)])
def test_drafts(drafts, accepted):
    """Tokens in a step: the sum of the probabilities that the first i drafts are accepted."""
    rule = Rule(drafts=drafts, accepted=accepted)
    expected = sum(accepted**i for i in range(drafts + 1))
    assert rule.tokens_per_step == pytest.approx(expected)
    found = simulate(table(context=0.0), rule, requests(1, [1001], arrivals=np.zeros(1)))
    step = 5.0 + (0.01 + 0.02) * (drafts + 1)
    after = found.end_ms[0] - found.first_ms[0]
    assert after == pytest.approx(math.ceil(1000 / expected - 1e-9) * step)


def test_a_steady_start_has_ages():
    """With ages, requests end one by one from the start, not all together."""
    ages = (np.arange(10) + 0.5) * 10
    found = simulate(table(), Rule(), requests(100, np.full(40, 100), at_once=10, ages=ages))
    assert len({*found.end_ms[:10].round(6)}) == 10
    assert max(Event(*e).sequences for e in found.events) <= 10
