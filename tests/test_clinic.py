"""The clinic: each broken loop has its symptom and gets its name, no mended or healthy loop gets any."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from course_lib.accounts import Account, Moment
from course_lib.clinic import (
    BRANCHES,
    Reading,
    Watch,
    all_cases,
    diagnose,
    examine,
    find_case,
    search,
    table_of_cases,
    tree_text,
    what_changes,
)
from course_lib.clinic.patients import Adapter, adamw, batches, gpt, labels, loss_of, mlp, scaler, sgd, vectors
from course_lib.errors import CourseError
from course_lib.i18n import LANGUAGES, set_language
from course_lib.models import next_token_loss
from course_lib.oom import OomMessage
from course_lib.probe import probe
from course_lib.recorder import Recorder, longest_first
from course_lib.units import GIB, MIB

NAMES = list(all_cases())
Loop = Callable[[], object]


@pytest.fixture(scope="module")
def readings() -> dict[tuple[str, bool], Reading]:
    return {(name, mended): case.read(mended) for name, case in all_cases().items() for mended in (False, True)}


# -- every case against every diagnosis


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_loop_gets_its_name_and_no_other(name: str, readings: dict[tuple[str, bool], Reading]) -> None:
    assert diagnose(readings[name, False]).names == (name,)


@pytest.mark.parametrize("name", NAMES)
def test_a_mended_loop_gets_no_name_and_ends_well(name: str, readings: dict[tuple[str, bool], Reading]) -> None:
    reading = readings[name, True]
    assert diagnose(reading).names == ()
    assert reading.error == ""
    assert all(each.finite_after for each in reading.updates)
    card_bytes = all_cases()[name].card_bytes
    if card_bytes and not reading.deaths:  # one loop meets a refusal, and catches it
        assert reading.trace.peak_bytes <= card_bytes


def test_at_least_twenty_symptoms_really_fail(readings: dict[tuple[str, bool], Reading]) -> None:
    died = [name for name in NAMES if readings[name, False].deaths]
    refused = [name for name in NAMES if readings[name, False].error and name not in died]
    assert len(died) >= 18
    assert len(refused) >= 7
    assert sum(case.recorded is not None for case in all_cases().values()) == 4


# -- the symptoms, by other means than the probe's


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fp16-gradients", ValueError),
        ("unscale-twice", RuntimeError),
        ("update-forgotten", RuntimeError),
        ("no-inf-checks", AssertionError),
        ("state-not-detached", RuntimeError),
        ("mixed-types", RuntimeError),
    ],
)
def test_pytorch_itself_says_what_the_case_quotes(name: str, error: type[Exception]) -> None:
    case = find_case(name)
    assert case.broken is not None
    with pytest.raises(error) as raised:
        case.broken()
    assert any(message in str(raised.value) for message in case.messages)


def test_bytes_by_hand(readings: dict[tuple[str, bool], Reading]) -> None:
    weights = 4 * (256 * 128 + 64 * 128 + 2 * (12 * 128**2 + 13 * 128) + 2 * 128)  # tied head
    reading = readings["update", False]
    assert reading.took(Account.OPTIMIZER) == pytest.approx(2 * weights, rel=0.02)
    assert reading.took(Account.TEMPORARY) == pytest.approx(weights, rel=0.02)
    assert readings["logits", False].deaths[0].tried_bytes == 4 * 3 * 4096 * 128256
    assert "2.77 TiB" in readings["host-memory", False].message  # huggingface/transformers#10722
    held = readings["held-one-step", False].passes
    assert "0.25 MiB" in diagnose(readings["held-one-step", False]).found[0].evidence  # 4 * 64 * 256 * 4 bytes
    assert len(held) == 2


def test_numbers_by_hand(readings: dict[tuple[str, bool], Reading]) -> None:
    assert readings["not-divided", False].ratio == pytest.approx([4, 4])
    assert readings["not-divided", True].ratio == pytest.approx([1, 1])
    for update in readings["clipped-scaled", False].updates:
        assert update.norm * 4096 == pytest.approx(1, rel=1e-3)
    assert [each.targets for each in readings["no-target", False].means] == [256, 0, 256, 256]
    model, (x, *_more) = mlp(), vectors(1)
    largest = float((1e5 * x @ model[0].weight.T + model[0].bias).abs().max().detach())  # type: ignore[operator, union-attr]
    assert 65504 < largest < math.inf
    assert readings["fp16-overflow", False].nonfinite[0].largest < 65504
    weight = torch.ones((), dtype=torch.bfloat16)
    assert weight - 1 / 512 == weight  # half a step below 1 is 1/512; ties go to even
    assert weight - 1 / 256 != weight


def test_reentrant_adapters_have_no_gradient() -> None:
    block = Adapter(8)
    F.cross_entropy(nn.Linear(8, 2)(checkpoint(block, torch.randn(4, 8), use_reentrant=True)), torch.zeros(4).long())
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad"):
        checkpoint(block, torch.randn(4, 8), use_reentrant=True).sum().backward()
    assert search("element 0 of tensors does not require grad").names[0] == "reentrant-adapters"


# -- healthy loops


def plain() -> None:
    model = gpt(layers=1)
    optimizer = adamw(model)
    for batch in batches(3):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulated_in_bf16_autocast() -> None:
    model = gpt(layers=1)
    optimizer = adamw(model)
    for number, batch in enumerate(batches(4), 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch) / 2
        loss.backward()
        if number % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def token_weighted_windows() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model, 1e-2)
    data = batches(4)
    for tokens_targets in data[:2]:
        tokens_targets[1][:, 10:] = -100
    for window in (data[:2], data[1:3]):
        counted = sum(int((targets != -100).sum()) for _tokens, targets in window)
        for tokens, targets in window:
            (next_token_loss(model(tokens), targets, "sum") / counted).backward()
        optimizer.step()
        optimizer.zero_grad()


def scaler_that_begins_too_high() -> None:
    model, scaling = mlp(), scaler(2.0**24)
    optimizer = sgd(model)
    for x in vectors(8):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), labels(x))
        scaling.scale(loss).backward()
        scaling.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()


def adapters_with_checkpoints() -> None:
    blocks, head = nn.ModuleList(Adapter(64) for _ in range(3)), nn.Linear(64, 8)
    model = nn.Sequential(*blocks, head)
    optimizer = adamw(model)
    for x in vectors(3):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        F.cross_entropy(head(x), labels(vectors(1)[0])).backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluated_between_epochs() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model)
    best = math.inf
    for _epoch in range(2):
        model.train()
        for batch in batches(2):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.inference_mode():
            best = min(best, sum(loss_of(model, batch).item() for batch in batches(2)))


def pure_bf16_with_a_fitting_rate() -> None:
    model = mlp(dtype=torch.bfloat16)
    optimizer = sgd(model, 1.0)
    for x in vectors(4):
        F.cross_entropy(model(x.bfloat16()).float(), labels(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_networks_in_turn() -> None:
    maker, judge = mlp(outputs=64), mlp(outputs=1)
    optimizers = {network: sgd(network, 0.01) for network in (maker, judge)}
    for x in vectors(4):
        judge.zero_grad()
        (judge(maker(x).detach()).mean() - judge(x).mean()).backward()
        optimizers[judge].step()
        maker.zero_grad()
        (-judge(maker(x)).mean()).backward()  # leaves gradients in the judge, too
        optimizers[maker].step()


HEALTHY = (
    plain, accumulated_in_bf16_autocast, token_weighted_windows, scaler_that_begins_too_high, adapters_with_checkpoints,
    evaluated_between_epochs, pure_bf16_with_a_fitting_rate, two_networks_in_turn,
)  # fmt: skip


@pytest.mark.parametrize("loop", HEALTHY, ids=lambda loop: loop.__name__)
def test_a_healthy_loop_gets_no_diagnosis(loop: Loop) -> None:
    reading = examine(loop)
    assert reading.error == ""
    assert reading.updates
    assert diagnose(reading).names == ()
    assert str(diagnose(reading)).startswith("nothing found")


def test_a_scaler_at_work_skips_and_goes_on() -> None:
    reading = examine(scaler_that_begins_too_high)
    assert 1 <= len(reading.updates) < 8
    assert reading.nonfinite[0].moment is Moment.BACKWARD


# -- when it cannot tell


@pytest.mark.parametrize(
    "reading",
    [
        Reading(error="OutOfMemoryError", message="CUDA out of memory.", counters=OomMessage(total_bytes=24 * GIB)),
        # ai-forever/ru-gpts#27: a genuine shortage, and the message does not say which account
        Reading(
            error="OutOfMemoryError", message="CUDA out of memory.",
            counters=OomMessage(26 * MIB, int(14.76 * GIB), int(21.44 * MIB), int(13.25 * GIB), int(13.84 * GIB)),
        ),
        Reading(error="KeyError", message="'input_ids'"),
    ],
)  # fmt: skip
def test_too_little_evidence_gets_no_name(reading: Reading) -> None:
    assert diagnose(reading).names == ()
    assert str(diagnose(reading)).startswith("cannot tell")


def test_a_first_step_in_eval_mode_is_not_taken_for_an_evaluation() -> None:
    def frozen_norms() -> None:
        loss_of(gpt(layers=1).eval(), batches(1)[0]).backward()

    assert diagnose(examine(frozen_norms, card_bytes=MIB)).names == ()


def test_a_bill_that_is_larger_than_the_card_is_no_case_of_the_clinic() -> None:
    reading = examine(plain, card_bytes=MIB)
    assert reading.death
    assert diagnose(reading).names == ()
    assert "larger than the card" in str(diagnose(reading))


# -- the probe


def test_the_probe_leaves_nothing_behind() -> None:
    hooks = (nn.modules.module._global_forward_pre_hooks, nn.modules.module._global_forward_hooks,
             _global_optimizer_pre_hooks)  # fmt: skip
    before = torch.Tensor.backward, torch.amp.GradScaler.step, *map(len, hooks)
    for loop in (plain, find_case("fp16-gradients").broken):
        assert loop is not None
        examine(loop, card_bytes=2 * MIB)
    assert (torch.Tensor.backward, torch.amp.GradScaler.step, *map(len, hooks)) == before


def test_it_counts_what_the_courses_probe_counts() -> None:
    model, (batch,) = gpt(layers=1), batches(1)
    optimizer = adamw(model)

    def step() -> None:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with probe(model, optimizer) as measured:
        step()
    with Watch() as watch:
        step()
    assert watch.reading.trace.peak_bytes == measured.trace.peak_bytes
    assert watch.reading.trace.static_bytes == measured.trace.static_bytes


def test_a_card_refuses_what_it_has_no_room_for() -> None:
    said = r"Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 3.00 MiB of which 1.00 MiB is free"
    with pytest.raises(torch.OutOfMemoryError, match=said), Watch(card_bytes=3 * MIB):
        _kept = torch.zeros(MIB // 2), torch.zeros(MIB // 2)


def test_what_a_card_refuses_by_itself_is_noted_as_well() -> None:
    case = find_case("kept-outputs")
    assert case.broken is not None
    with pytest.raises(torch.OutOfMemoryError), Watch(card_bytes=case.card_bytes), Watch() as inner:
        case.broken()
    assert inner.reading.death is not None
    assert diagnose(inner.reading).names == ("kept-outputs",)


def test_a_cards_own_figures_are_read_from_its_message() -> None:
    def refused() -> None:  # rshaojimmy/MADDoG#11
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB already "
            "allocated; 19.75 MiB free; 13.71 GiB reserved in total by PyTorch)"
        )

    assert diagnose(examine(refused)).names == ("fragmentation",)


# -- finding a case

ARTICLE = {
    "fp16-overflow": ("FP16 训练 loss 变 NaN", "梯度下溢/上溢", "FP16 training: loss becomes NaN"),
    "small-operators": ("autocast 后反而更慢", "模型里大量逐元素小算子", "slower after autocast"),
    "not-divided": ("梯度累积后 loss 异常大", "忘了除 accum_steps", "abnormally large loss with accumulation"),
    "long-attention": ("开了检查点还是 OOM", "输入序列太长，单层激活就爆", "checkpointing is on, still OOM"),
    "no-no-grad": ("验证时 OOM 训练时正常", "忘了 no_grad", "OOM in validation, training is fine"),
    "update": ("优化器 step 时 OOM", "OOM at the optimizer step", "OOM in optimizer.step"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_articles_six_are_found_by_its_own_words(language: str) -> None:
    set_language(language)
    for name, questions in ARTICLE.items():
        for question in questions:
            assert search(question).names[0] == name, question


@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_found_by_its_messages_and_its_own_symptom(name: str) -> None:
    case = find_case(name)
    for question in (*case.messages, case.symptom):
        assert name in search(f"Traceback (most recent call last):\n  {question}").names[:2], question


BARE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB "
    "of which 1.10 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.04 GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation. See documentation for Memory Management "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def test_a_bare_message_is_asked_when_and_a_traceback_says_it() -> None:
    assert "does not say why" in search(BARE).note
    assert len(search(BARE).names) > 15
    for line, name in (
        ("File torch/optim/adamw.py, in _multi_tensor_adamw: exp_avg_sq_sqrt = torch._foreach_sqrt", "update"),
        ("in evaluation_loop; preprocess_logits_for_metrics", "collected-logits"),
        ("optimizer.load_state_dict(torch.load(path)) in _load_from_checkpoint, resume", "loaded-twice"),
        ("torch.nn.functional.cross_entropy(logits.float()", "logits"),
    ):
        assert name in search(f"{line}\n{BARE}").names[:2], line
    assert "Try others" in search("qwertz").note
    fragmented = BARE.replace("2.00 GiB", "500.00 MiB").replace("20.00 GiB", "18.00 GiB").replace("1.04", "3.04")
    assert search(fragmented).names == ["fragmentation"]
    assert search(BARE.replace("20.00 GiB", "2.00 GiB")).names == ["elsewhere"]


def test_the_tree_and_the_table_hold_every_case() -> None:
    assert sorted(table_of_cases().names) == sorted(NAMES)
    assert all(name in tree_text() for name in NAMES)
    assert all(case.branch[1] in BRANCHES[case.branch[0]] for case in all_cases().values())
    with pytest.raises(CourseError, match="no case 'flu'"):
        find_case("flu")


def test_what_changes_is_shown_line_by_line() -> None:
    said = what_changes("no-no-grad").splitlines()
    assert "+    with torch.no_grad():" in said
    assert "-    for batch in batches(8):" in said
    assert "nvidia-smi" in what_changes("elsewhere")


# -- the recorder


def recorded_run(record: Recorder, optimizer: Any, model: nn.Module, data: list[Any], whole: bool) -> None:
    def step(batch: Any) -> None:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    if whole:
        with record.run():
            for batch in data:
                step(batch)
    for batch in () if whole else data:
        with record.step(batch):
            step(batch)


@pytest.mark.parametrize("whole", [False, True])
def test_the_recorder_says_step_batch_bill_and_next_change(whole: bool, tmp_path: Path) -> None:
    model = gpt(layers=1)
    optimizer = sgd(model)
    record = Recorder(model, optimizer, tmp_path / "death.json")
    data = [*batches(2, rows=1), *batches(1, rows=8)]
    with pytest.raises(torch.OutOfMemoryError) as raised, Watch(card_bytes=2 * MIB):
        recorded_run(record, optimizer, model, data, whole)
    death = record.death
    assert death is not None
    assert death.step == 3
    assert death.moment in ("forward", "backward")
    assert (8, 64) in death.batch_shapes.values()
    assert death.bill_bytes["weights"] == pytest.approx(4 * sum(p.numel() for p in model.parameters()), rel=0.02)
    assert "micro-batch of 4 in place of 8" in death.next_change
    assert raised.value.__notes__ == [str(death)]
    assert json.loads((tmp_path / "death.json").read_text())["step"] == 3


def test_one_line_around_transformers_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=256
    )
    model = transformers.LlamaForCausalLM(config)
    data = [dict.fromkeys(("input_ids", "labels"), torch.ones(length).long()) for length in (256, 16)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, data_collator=lambda rows: {k: v[None] for k, v in data[0].items()}
    )
    record = Recorder(trainer.model)
    with pytest.raises(torch.OutOfMemoryError), Watch(card_bytes=2 * MIB), record.run():
        trainer.train()
    assert record.death is not None
    assert record.death.batch_shapes["[input_ids]"] == (1, 256)
    assert record.death.step == 1


def test_the_recorder_knows_the_update_by_its_traceback() -> None:
    model = gpt(width=128)
    optimizer = adamw(model)
    record = Recorder(model, optimizer)
    with pytest.raises(torch.OutOfMemoryError), Watch(card_bytes=7 * MIB):
        recorded_run(record, optimizer, model, batches(1), whole=False)
    assert record.death is not None
    assert record.death.moment == "optimizer_step"
    assert "8-bit" in record.death.next_change


def test_other_errors_are_not_the_recorders() -> None:
    model = gpt(layers=1)
    record = Recorder(model)
    with pytest.raises(RuntimeError, match="shape"), record.run():
        raise RuntimeError("shape")
    assert record.death is None


def test_the_longest_come_first_and_the_rest_stays_in_order() -> None:
    assert longest_first(["a", "ccc", "b", "dd", "e"]) == ["ccc", "a", "b", "dd", "e"]
    assert longest_first([1, 5, 2, 4], length=int, count=2) == [5, 4, 1, 2]
