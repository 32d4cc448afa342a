"""The meter against PyTorch's own counters and against storages counted by hand."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from small_gpt import BATCH, CONFIG, LENGTH, SmallStep, loss_of, small_step
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim.optimizer import _global_optimizer_pre_hooks as optimizer_hooks

from course_lib.accounts import STEP_MOMENTS, Account, Moment
from course_lib.dryrun import dry_run
from course_lib.meter import Meter
from course_lib.models import GPTConfig
from course_lib.probe import probe
from course_lib.trace import Event, Trace
from course_lib.training import MasterWeights
from course_lib.units import round_to_block

VARIANTS = [
    {"checkpointed": checkpointed, "autocast": autocast, "accum": accum, "implementation": implementation}
    for checkpointed, autocast, accum, implementation in itertools.product(
        (False, True), (None, "cpu"), (1, 2), ("foreach", "forloop", "fused")
    )
]


def name_of(variant: dict[str, Any]) -> str:
    chosen = [key for key in ("checkpointed", "autocast") if variant[key]]
    return " ".join([*chosen, f"x{variant['accum']}", variant["implementation"]])


def measured(step: SmallStep) -> Trace:
    """The second step, on memory."""
    step()
    with probe(step.model, step.optimizer) as result:
        step()
    return result.trace


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_a_dry_run_is_what_a_real_step_takes(variant: dict[str, Any]) -> None:
    real = measured(small_step("cpu", **variant))
    meta = small_step("meta", **variant)
    dry = dry_run(meta.model, meta, meta.optimizer, imitate="cpu")
    assert dry.static_bytes == real.static_bytes
    assert dry.peak_moment is real.peak_moment
    assert dry.peak_bytes == pytest.approx(real.peak_bytes, rel=0.01)
    for moment in STEP_MOMENTS:
        assert dry.moment_peaks[moment] == pytest.approx(real.moment_peaks[moment], rel=0.01)
    for account in Account:
        assert dry.at_peak[account] == pytest.approx(real.at_peak[account], rel=0.01, abs=4096)


@pytest.mark.parametrize("variant", [each for each in VARIANTS if each["accum"] == 1], ids=name_of)
def test_the_peak_is_mem_trackers(variant: dict[str, Any]) -> None:
    """MemTracker sees what it is given or what it sees being made, so it is given the batch; it does not round
    to blocks on the CPU, and it counts Adam's step counters there, which a card does not hold. Both are below 1 %.
    """
    step = small_step("cpu", **variant)
    real = measured(step)
    tracker = MemTracker()
    tracker.track_external(step.model, step.optimizer, *step.batches[0])
    with tracker:
        step()
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    assert real.peak_bytes == pytest.approx(theirs["Total"], rel=0.01)


@pytest.mark.parametrize("autocast", [None, "cpu"])
def test_activations_are_what_autograd_saves(autocast: str | None) -> None:
    """At the end of the forward pass: each storage that a node saved, but for parameters; the batch; two scalars.

    The scalars are the loss, which the caller holds, and the one that its gradient begins with.
    """
    step = small_step("cpu", autocast=autocast)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in step.batches[0]}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step.forward()  # holds what was saved, so that no address is used twice
    for parameter in step.model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    del loss

    activations = measured(step).end_of(Moment.FORWARD)[Account.ACTIVATIONS]
    assert activations == sum(map(round_to_block, storages.values())) + 2 * round_to_block(4)


def test_accounts_through_a_first_step() -> None:
    """y = x W: 256 KiB of weights, a batch of 1 MiB, Adam."""
    layer = nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)
    batch = torch.zeros(1024, 256)

    def step() -> None:
        layer(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with probe(layer, optimizer) as result:
        step()
    trace = result.trace
    weight, data = 256 * 1024, 1024 * 1024  # the output is as large as the batch
    assert trace.bill_at(0) == bill(weights=weight, activations=data)
    # sum() keeps nothing, so the output is gone before the backward pass; the loss and where its gradient starts stay.
    assert trace.end_of(Moment.FORWARD) == bill(weights=weight, activations=data + 2 * 512)
    assert trace.moment_peaks[Moment.FORWARD] == weight + data + data + 512
    assert trace.end_of(Moment.BACKWARD)[Account.GRADIENTS] == weight
    bills = [trace.bill_at(i) for i, event in enumerate(trace.events) if event.moment is Moment.OPTIMIZER_STEP]
    with_denominator = [each for each in bills if each[Account.TEMPORARY] == weight]
    assert [each[Account.OPTIMIZER] for each in with_denominator] == [2 * weight]
    assert trace.bill_at(-1) == bill(weights=weight, optimizer=2 * weight, activations=data)
    assert trace.static_bytes == {
        Account.WEIGHTS: weight, Account.GRADIENTS: weight, Account.OPTIMIZER: 2 * weight,
    }  # fmt: skip


def test_gradients_that_were_there_before() -> None:
    layer = nn.Linear(256, 256, bias=False)
    layer(torch.zeros(1, 256)).sum().backward()
    with probe(layer) as result:
        layer(torch.zeros(1, 256)).sum().backward()
    assert result.trace.bill_at(0) == bill(weights=256 * 1024, gradients=256 * 1024)
    # the second gradient is made, then added to the first
    assert result.trace.moment_peaks[Moment.BACKWARD] >= 3 * 256 * 1024
    assert result.trace.end_of(Moment.BACKWARD)[Account.GRADIENTS] == 256 * 1024
    assert result.trace.static_bytes[Account.GRADIENTS] == 256 * 1024


def test_what_the_caller_holds_counts() -> None:
    """Logits that a variable still names in the backward pass are activations that nobody needs."""
    step = small_step("cpu")
    logits_bytes = BATCH * LENGTH * CONFIG.vocab * 4

    def dropped() -> None:
        loss_of(step.model, step.batches[0]).backward()

    def held() -> None:
        tokens, targets = step.batches[0]
        logits = step.model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        del logits

    ends = []
    for run in (dropped, held):
        with probe(step.model, step.optimizer) as result:
            run()
        ends.append(result.trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS])
        step.optimizer.zero_grad()
    assert ends[1] - ends[0] == logits_bytes


@pytest.mark.parametrize("implementation", ["foreach", "forloop", "fused"])
def test_adams_step_counters(implementation: str) -> None:
    """One fp32 number a tensor: on the card where the optimizer is fused, else in host memory."""
    step = small_step("cpu", implementation=implementation)
    parameters = list(step.model.parameters())
    on_card = 4 * len(parameters) if implementation == "fused" else 0
    moments = 2 * 4 * sum(parameter.numel() for parameter in parameters)
    assert measured(step).static_bytes[Account.OPTIMIZER] == moments + on_card


def test_master_weights_and_their_optimizer() -> None:
    """An optimizer inside an optimizer: fp32 copies and both moments are its state, and nothing leaves its moment."""
    layer = nn.Linear(256, 256, bias=False, dtype=torch.bfloat16)
    optimizer = MasterWeights(list(layer.parameters()), lambda masters: torch.optim.AdamW(masters), "foreach")

    def step() -> None:
        layer(torch.zeros(8, 256, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with probe(layer, optimizer) as result:
        step()
    count = 256 * 256
    assert result.trace.static_bytes == {
        Account.WEIGHTS: 2 * count, Account.GRADIENTS: 2 * count, Account.OPTIMIZER: 12 * count,
    }  # fmt: skip
    assert result.trace.moment_peaks[Moment.OPTIMIZER_STEP] >= (2 + 2 + 12 + 4 + 4) * count


def test_what_follows_an_inner_optimizers_step_is_still_the_update() -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            inner.step()
            torch.zeros(1000)

    layer = nn.Linear(4, 4)
    inner = torch.optim.SGD(layer.parameters())
    outer = Outer(layer.parameters())
    with probe(layer, outer) as result:
        layer(torch.zeros(1, 4)).sum().backward()
        outer.step()
        torch.ones(2000)
    moments = {event.change[4]: event.moment for event in result.trace.events}
    assert moments[round_to_block(4000)] is Moment.OPTIMIZER_STEP
    assert moments[round_to_block(8000)] is Moment.FORWARD


def traced(run: Callable[[], Any]) -> Trace:
    with Meter("cpu", nn.Module()) as meter:
        kept = run()  # noqa: F841 - what is returned stays alive
    return meter.trace()


def allocated(run: Callable[[], Any]) -> list[int]:
    """Bytes by which the events of ``run`` change the live total, in order."""
    return [sum(event.change) for event in traced(run).events if any(event.change)]


@pytest.mark.parametrize(("asked", "taken"), [(1, 512), (512, 512), (513, 1024), (4096, 4096)])
def test_rounding_to_blocks(asked: int, taken: int) -> None:
    assert allocated(lambda: torch.zeros(asked, dtype=torch.uint8)) == [taken]


def test_views_and_in_place_operators_take_nothing() -> None:
    def run() -> Tensor:
        x = torch.zeros(1024)
        y = x.view(32, 32).t()[3:].add_(1).mul_(2)
        return torch.relu_(y.detach())

    assert allocated(run) == [4096]


def test_a_storage_dies_with_its_last_view() -> None:
    def run() -> Tensor:
        row = torch.zeros(4, 1024)[0]
        last = torch.ones(1024)
        del row
        return last + 1

    # sixteen KiB for one row of four; it goes when the row goes, before the next operator
    assert allocated(run) == [4 * 4096, 4096, -4 * 4096, 4096, -4096]


def test_storages_with_several_outputs_and_none() -> None:
    def run() -> Any:
        values, indices = torch.sort(torch.zeros(1024))
        torch.empty(0)
        return values, indices

    assert allocated(run) == [4096, 4096 + 8192, -4096]


def test_buffers_are_weights_and_several_models_one_bill() -> None:
    models = [nn.BatchNorm1d(1024), nn.Linear(8, 8, bias=False)]
    with Meter("cpu", models) as meter:
        models[0](torch.zeros(2, 1024))
    # weight, bias, running mean and variance of 1024 numbers each, a counter in int64; 64 numbers
    assert meter.trace().static_bytes[Account.WEIGHTS] == 4 * 4096 + 8 + 256


def test_only_the_devices_own_memory_counts() -> None:
    with Meter("meta", nn.Module()) as meter:
        torch.zeros(1024)
        torch.zeros(1024, device="meta")
    assert max(meter.trace().live_total) == 4096


def test_numbers_that_become_a_tensor_are_born_where_it_is_made() -> None:
    trace = traced(lambda: (torch.zeros(1024), torch.tensor([0.0] * 1000)))
    assert [event.moment for event in trace.events] == [Moment.FORWARD, Moment.FORWARD]
    assert trace.live_total == [4096, 8192]


def test_nothing_is_left_after_an_error() -> None:
    step = small_step("cpu")
    hooks = dict(optimizer_hooks), torch._C._len_torch_dispatch_stack()
    meter = Meter("cpu", step.model, step.optimizer)
    tokens, targets = step.batches[0]
    with pytest.raises(IndexError), meter:
        loss_of(step.model, (tokens, targets + CONFIG.vocab))
    assert (dict(optimizer_hooks), torch._C._len_torch_dispatch_stack()) == hooks
    made = [event for event in meter.trace().events if event.operator != "free"]
    assert len(made) > 10
    step()
    assert [event for event in meter.trace().events if event.operator != "free"] == made


def test_moments_of_a_step() -> None:
    trace = measured(small_step("cpu", checkpointed=True, accum=2))
    moments = [moment for moment, _ in itertools.groupby(event.moment for event in trace.events)]
    assert moments[:1] == [Moment.LOAD]
    assert moments[1:6] == [Moment.FORWARD, Moment.BACKWARD, Moment.FORWARD, Moment.BACKWARD, Moment.OPTIMIZER_STEP]


def test_recomputation_belongs_to_the_backward_pass() -> None:
    plain, again = (measured(small_step("cpu", checkpointed=checkpointed)) for checkpointed in (False, True))
    assert again.end_of(Moment.FORWARD)[Account.ACTIVATIONS] < plain.end_of(Moment.FORWARD)[Account.ACTIVATIONS] / 2
    activations = list(again.account(Account.ACTIVATIONS))
    forward = again.end_of(Moment.FORWARD)[Account.ACTIVATIONS]
    grown = [e.moment for e, now in zip(again.events, activations, strict=True) if now > forward]
    assert set(grown) <= {Moment.FORWARD, Moment.BACKWARD}
    assert Moment.BACKWARD in {event.moment for event in gelus(again)}
    assert Moment.BACKWARD not in {event.moment for event in gelus(plain)}


def gelus(trace: Trace) -> Iterator[Event]:
    return (event for event in trace.events if event.operator == "gelu")


def test_depth_costs_what_a_block_keeps() -> None:
    """Each further block of a GPT keeps, in fp32: two norms' inputs and statistics, six inputs of products, GELU's."""
    tokens, width = BATCH * LENGTH, 64
    ends = []
    for layers in (2, 3):
        config = GPTConfig(vocab=512, block_size=LENGTH, layers=layers, heads=4, width=width)
        ends.append(measured(small_step("cpu", config=config)).end_of(Moment.FORWARD)[Account.ACTIVATIONS])
    per_token = 4 * width * (2 + 1 + 3 + 1 + 1 + 4 + 4)  # norms, input, q k v, mixed, input, GELU's input and output
    statistics = 2 * 2 * 4 + 4 * 4  # of each norm two numbers a token, of each head one
    assert ends[1] - ends[0] == tokens * (per_token + statistics)


def bill(**accounts: int) -> dict[Account, int]:
    return {account: accounts.get(account.value, 0) for account in Account}
