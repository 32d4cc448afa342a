# %% [markdown] lang="en"
# # 03 · Gradient checkpointing
#
# *The core takes 35 minutes, the deeper sections another 50. Before it: `01_ledger`. Afterwards you can say what a checkpoint keeps and computes again, when the peak falls and when it does not move, and what it costs in FLOPs and in seconds.*
#
# ## Switched on, and nothing saved
#
# Somebody puts a model under `torch.utils.checkpoint` and measures the peak, in the two variants that PyTorch has ([the report](https://github.com/pytorch/pytorch/issues/147449)):
#
# | | peak |
# |---|---|
# | no checkpoint | 60.89 GB |
# | `use_reentrant=False` | 60.84 GB |
# | `use_reentrant=True` | 12.82 GB, and a warning |
#
# One variant saves nothing. The other saves four fifths, and the warning says: *None of the inputs have requires_grad*. Which of the two would you take? (Neither.) **What does a checkpoint really save, when, and at what price?**

# %% [markdown] lang="zh"
# # 03 · 梯度检查点
#
# *主线 35 分钟，深入部分再加 50 分钟。先学 `01_ledger`。学完以后，你说得清检查点留下什么、重算什么，峰值什么时候会降、什么时候纹丝不动，以及 FLOPs 和时间上各要付多少。*
#
# ## 检查点开了，一点没省
#
# 有人给模型套上 `torch.utils.checkpoint`，把 PyTorch 的两种变体都测了一遍峰值（[原始报告](https://github.com/pytorch/pytorch/issues/147449)）：
#
# | | 峰值 |
# |---|---|
# | 不设检查点 | 60.89 GB |
# | `use_reentrant=False` | 60.84 GB |
# | `use_reentrant=True` | 12.82 GB，外加一条警告 |
#
# 一种什么都没省；另一种省了五分之四，可是警告说：*None of the inputs have requires_grad*。换作你，选哪一种？（哪种都不该选。）**检查点到底省什么？什么时候省？代价是多少？**

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# Llama-2-7B in BF16, a checkpoint around each of its 32 blocks.
#
# 1. LoRA, 4 sequences of 2048 tokens. By how many **per cent** does that shrink what the forward pass leaves behind for the backward pass?
# 2. The blocks' forward pass is computed once more. How many per cent of FLOPs does that add to a step of full fine-tuning?
# 3. Full fine-tuning with AdamW as PyTorch runs it on a card, one sequence of 2048 tokens. Without checkpoints the peak is 100 %. And with them?

# %% [markdown] lang="zh"
# ## 预测
#
# Llama-2-7B，BF16，32 个 block 各设一个检查点。
#
# 1. LoRA，4 条 2048 个 token 的序列。前向传播留给反向传播的东西，会减少**百分之多少**？
# 2. 各个 block 的前向要多算一遍。全量微调的一步，FLOPs 会多出百分之多少？
# 3. 全量微调，用 PyTorch 在显卡上默认的 AdamW，一条 2048 个 token 的序列。不设检查点时峰值算 100%，设了以后是百分之多少？

# %%
from course_lib.journal import predict, settle

saving_percent = ...  # of what the forward pass leaves behind, LoRA
extra_percent = ...  # of the step's FLOPs, full fine-tuning
peak_percent = ...  # of the peak without checkpoints, full fine-tuning
### BEGIN SOLUTION
saving_percent = 70  # 60 to 80, as one reads
extra_percent = 33  # a third forward pass beside one forward and two backward
peak_percent = 60
### END SOLUTION
predict("checkpointing.saving_percent", saving_percent, unit="%")
predict("checkpointing.extra_percent", extra_percent, unit="%")
predict("checkpointing.peak_percent", peak_percent, unit="%")

# %% [markdown] lang="en"
# ## What a forward pass leaves behind
#
# Autograd saves, operator by operator, what the backward pass will need. PyTorch shows it to whoever asks: `saved_tensors_hooks` calls a function for each tensor that is saved. The first cell looks into one block of the course's small GPT, and leaves out the weights, which are there anyway.
#
# You will see that a block is entered by one tensor, its **boundary**, and leaves some fifteen times as much behind, its **inside**. (The list follows the forward pass: the boundary first, then what attention keeps, its queries, keys and values the largest, and last the MLP, with a hidden layer four times as wide.) All of it follows from the boundary and the weights. So do not keep it: keep the boundary, and when the backward pass comes to this block, run its forward pass again. That is **gradient checkpointing**, and PyTorch has it as a function. The second cell puts it around each block, in one line, and compares.

# %% [markdown] lang="zh"
# ## 前向传播留下了什么
#
# autograd 会逐个算子存下反向要用的东西。想看就能看：`saved_tensors_hooks` 会在每存一个张量时调用你给的函数。第一个单元看看课程自带的小 GPT 的一个 block 存了什么，权重不算，反正它们本来就在。
#
# 你会看到：进入 block 的只有一个张量，叫**边界**；留下的却有它的十几倍，叫**内部**。（清单按前向的顺序列出：头一个是边界，接着是注意力存的，其中 query、key、value 合起来最大，最后是 MLP，它的隐藏层有四倍宽。）内部完全可以由边界和权重重新算出来。那就别留：只留边界，等反向传播走到这个 block，再把它的前向跑一遍。这就是**梯度检查点**，PyTorch 里是一个现成的函数。第二个单元用一行代码把它套在每个 block 上，再比一比。

# %%
from contextlib import contextmanager

import torch

from course_lib.models import GPT, GPTConfig
from course_lib.units import MIB


@contextmanager
def saved_tensors(model):
    """Collects what autograd saves, each memory once, the model's own weights left out."""
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    found = {}

    def note(tensor):
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            found.setdefault(address, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield found


def size_of(found):
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


torch.set_num_threads(1)  # for matrices this small a second thread costs more than it brings
torch.manual_seed(0)
config = GPTConfig(layers=8, width=128, heads=4, vocab=256, block_size=64)
model = GPT(config)
x = torch.randn(8, 64, 128, requires_grad=True)  # [B, T, H], what enters a block
with saved_tensors(model) as found:
    _out = model.blocks[0](x)
for tensor in found.values():
    print(f"{tensor.untyped_storage().nbytes() / MIB:6.3f} MiB  {tuple(tensor.shape)}")
inside_mib, boundary_mib = size_of(found) / MIB - x.nbytes / MIB, x.nbytes / MIB
print(f"the block's input {boundary_mib:.2f} MiB, all else {inside_mib:.2f} MiB: {inside_mib / boundary_mib:.0f} times as much")

# %%
from functools import partial

from torch.utils.checkpoint import checkpoint

from course_lib.corpus import draw_batch
from course_lib.models import next_token_loss


def checkpoint_blocks(model, **how):
    """Each block of ``model`` under a checkpoint, in place."""
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **how)
    return model


def kept_and_gradients(model, tokens, targets):
    model.zero_grad()
    with saved_tensors(model) as found:
        loss = next_token_loss(model(tokens), targets)
    kept = size_of(found)
    loss.backward()
    return kept, [weight.grad for weight in model.parameters()]


tokens, targets = draw_batch(8, 64, torch.Generator().manual_seed(0))
kept, gradients = kept_and_gradients(model, tokens, targets)
twin = GPT(config)
twin.load_state_dict(model.state_dict())
kept_now, gradients_now = kept_and_gradients(checkpoint_blocks(twin), tokens, targets)
same = all(torch.equal(one, other) for one, other in zip(gradients, gradients_now, strict=True))
print(f"kept for the backward pass: {kept / MIB:.1f} MiB, with checkpoints {kept_now / MIB:.1f} MiB")
print("gradients bit for bit the same:", same)

# %% [markdown] lang="en"
# The gradients are the same bits. Checkpointing approximates nothing; it only chooses when a number is computed.
#
# ## The timeline, without and with
#
# Now the 7B with LoRA, in the dry run of lesson 01: the real step on tensors that have a shape and no memory. Before you run the cell: where will the lower curve have its peak?

# %% [markdown] lang="zh"
# 梯度一位不差。检查点不做任何近似，它只是决定一个数什么时候算。
#
# ## 时间线：设检查点之前和之后
#
# 现在用 01 课的空跑（在只有形状、不占内存的 meta 张量上走一遍真实的训练步）看 7B 的 LoRA。运行之前先想一想：下面那条曲线的峰值会落在哪里？

# %%
from dataclasses import replace

from course_lib.accounts import Account, Moment
from course_lib.dryrun import dry_run_config
from course_lib.exercises.figures import two_timelines
from course_lib.figures import show
from course_lib.hf_config import read_config, read_model
from course_lib.plots import alt_text
from course_lib.recipe import Recipe
from course_lib.units import GIB

llama_config, llama = read_config("llama-7b"), read_model("llama-7b")
lora = Recipe(precision="bf16", lora_rank=16, batch=4, seq=2048)
traces = [dry_run_config(llama_config, replace(lora, checkpoint=each)) for each in ("none", "block")]
left = [trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS] for trace in traces]
for name, trace, size in zip(("plain", "checkpoints"), traces, left, strict=True):
    print(f"{name:12} left by the forward pass {size / GIB:5.2f} GiB, peak {trace.peak_bytes / GIB:5.2f} GiB "
          f"in {trace.peak_moment}")
settle("checkpointing.saving_percent", 100 * (1 - left[1] / left[0]), unit="%")
show(two_timelines(*traces), " ".join(alt_text(trace) for trace in traces))

# %% [markdown] lang="en"
# The mountain is gone. Below, the forward pass leaves 32 boundaries; the backward pass then works from the last block to the first, and each tooth of the saw is one block's inside, computed again, used and dropped. What sticks out now is the loss with its logits, which lies outside of all blocks.
#
# ## The price
#
# A forward pass through a matrix costs 2 FLOPs for each weight and token, the backward pass twice that: one product for the gradient of the input, one for that of the weight. One more forward pass on top would be a third. Count instead of guessing; PyTorch's own counter runs on meta tensors, too, and since all blocks are alike, two shallow models tell the whole:

# %% [markdown] lang="zh"
# 大山没了。下图里，前向只留下 32 个边界；反向从最后一个 block 往前走，每一个锯齿就是一个 block 的内部：重算出来，用完就扔。现在最突出的是损失和它的 logits，它们在所有 block 之外。
#
# ## 代价
#
# 前向经过一个矩阵，每个权重、每个 token 要 2 FLOPs；反向是它的两倍：输入的梯度一次乘法，权重的梯度一次乘法。再多一次前向，就是多三分之一。别猜，来数：PyTorch 自己的计数器在 meta 张量上也能用；各个 block 都一样，两个浅的模型就能推出整个模型：

# %%
from torch.utils.benchmark import Timer  # warms up, waits for the card, takes the median

from course_lib.flops import step_flops  # two shallow models under PyTorch's FlopCounterMode

full = Recipe(precision="bf16", batch=1, seq=2048)
extra = {}
for name, recipe in {"full fine-tuning": full, "LoRA": replace(full, lora_rank=16)}.items():
    plain, more = (step_flops(llama_config, replace(recipe, checkpoint=each)) for each in ("none", "block"))
    extra[name] = more / plain - 1
    print(f"7B, {name:17} {plain / 1e12:6.1f} TFLOP a step, with checkpoints {more / 1e12:6.1f}: {extra[name]:+.1%}")
settle("checkpointing.extra_percent", 100 * extra["full fine-tuning"], unit="%")

device = "cuda" if torch.cuda.is_available() else "cpu"
for name, prepare in (("plain", lambda timed: timed), ("with checkpoints", checkpoint_blocks)):
    step = {"model": prepare(GPT(config)).to(device), "batch": tokens.to(device), "loss": next_token_loss}
    seconds = Timer("loss(model(batch), batch).backward()", globals=step).blocked_autorange(min_run_time=0.3).median
    print(f"the small GPT on this machine's {device}, {name}: {1000 * seconds:.0f} ms")

# %% [markdown] lang="en"
# Less than a third, for two reasons: the head is not computed again, and PyTorch stops a recomputation once the last tensor that was missing is there, so the last product of each block is never repeated. With LoRA the price is *higher*: frozen weights need no gradient, so the backward pass costs no more than the forward pass, and one more forward pass weighs more beside it. Seconds follow roughly; on a small model the bookkeeping counts, too.
#
# ## What it cannot touch
#
# Now the recipe of the third prediction, and some others, by the ledger: what the forward pass leaves behind, and the peak. (AdamW's default on a card, foreach, needs a temporary as large as the trained parameters at each update; fused needs none.)

# %% [markdown] lang="zh"
# 不到三分之一，原因有两个：输出层不用重算；而且 PyTorch 重算时，反向缺的张量一补齐就停，所以每个 block 的最后一次乘法从不重复。LoRA 的代价反而*更高*：冻结的权重不要梯度，反向并不比前向贵，多一次前向在里面占的分量就更重。时间大致随 FLOPs 走；模型太小的话，记账的开销也要算上。
#
# ## 它碰不到什么
#
# 现在轮到第三个预测里的配方，再加上另外几种，用账本来算：前向留下多少，峰值是多少。（显卡上的 AdamW 默认用 foreach 实现，更新时要开一份和可训练参数一样大的临时张量；fused 实现不用开。）

# %%
from course_lib import ledger
from course_lib.claims import judge
from course_lib.ledger import Instant

qwen_run = Recipe(precision="bf16", optimizer_impl="fused", batch=4, seq=2048)
runs = {
    "7B full": ("llama-7b", full),
    "7B full, fused, batch 8": ("llama-7b", replace(full, optimizer_impl="fused", batch=8)),
    "7B LoRA, batch 4": ("llama-7b", lora),
    "Qwen2.5-0.5B, batch 4": ("qwen2.5-0.5b", qwen_run),
}
saved, fell = {}, {}
print(f"{'GiB':25}{'left by forward':>20}{'saved':>8}{'peak':>18}   in")
for name, (preset, recipe) in runs.items():
    plain, cut = (ledger.predict(read_model(preset), replace(recipe, checkpoint=each)) for each in ("none", "block"))
    before, after = (bill.at(Instant.FORWARD_END)[Account.ACTIVATIONS] for bill in (plain, cut))
    saved[name], fell[name] = 1 - after / before, cut.peak_bytes / plain.peak_bytes
    print(f"{name:25}{before / GIB:10.2f} ->{after / GIB:7.2f}{saved[name]:8.0%}{plain.peak_bytes / GIB:9.2f} ->"
          f"{cut.peak_bytes / GIB:6.2f}   {cut.peak_moment}")
print()
settle("checkpointing.peak_percent", 100 * fell["7B full"], unit="%")
judge("C12", {f"FLOPs, {name}": 0.2 <= share <= 0.3 for name, share in extra.items()}
      | {f"activations, {name}": 0.6 <= share <= 0.8 for name, share in saved.items()})

# %% [markdown] lang="en"
# In the first row checkpointing saves 93 % of the activations and **not one byte of the peak**: that is in the optimizer step, where no activation is alive. In the last row the logits stay, 152,000 numbers for each token, and cap what can be saved. (Row three again is the run of the timeline, where the dry run said 67.81: the ledger books three dropout masks too many, those of the first block's adapters, before which nothing is trained.) Hence the order of questions: in which moment is the peak; whose bytes are they; and only then, which remedy.
#
# Try the controls below, by arrow keys. From where they stand, any one part of the recipe leaves the peak in the backward pass. Which two together bring it to the optimizer step? (There is more than one pair, and they have a control in common.)
#
# **Task.** Four other runs of Llama-2-7B. Which peaks fall by a tenth or more when each block gets a checkpoint? Answer `True` or `False`.
#
# - A: full fine-tuning under BF16 autocast, AdamW fused, 1 sequence of 2048 tokens
# - B: full fine-tuning in pure BF16, AdamW foreach, 8 sequences of 2048 tokens
# - C: LoRA rank 16 on BF16 weights, 1 sequence of 128 tokens
# - D: LoRA rank 16 on weights in NF4 (4 bits), 1 sequence of 2048 tokens

# %% [markdown] lang="zh"
# 第一行里，检查点省下了 93% 的激活值，峰值却**一个字节都没少**：峰值在优化器更新那一步，那时一个激活值都不在了。最后一行里，logits 还在，每个 token 有 15 万多个数，能省的就被它封了顶。（第三行就是前面时间线的那次训练，空跑量得 67.81：账本多记了三份 dropout 掩码，是第一个 block 的适配器的；它之前没有要训练的东西，掩码其实不用存。）所以提问的顺序是：峰值在哪个时刻？是谁的字节？最后才问用什么办法。
#
# 用下面的控件试一试（方向键）。从一开始的设置出发，配方只动一处，峰值总在反向。动哪两处，峰值会换到优化器更新？（不止一种动法，但有一个控件每次都少不了。）
#
# **任务。** 再看 Llama-2-7B 的四种跑法。每个 block 设上检查点以后，哪几种的峰值会降一成以上？回答 `True` 或 `False`。
#
# - A：BF16 autocast 下全量微调，AdamW fused，1 条 2048 个 token
# - B：纯 BF16 全量微调，AdamW foreach，8 条 2048 个 token
# - C：BF16 权重上的 LoRA，秩 16，1 条 128 个 token
# - D：NF4（4 位）权重上的 LoRA，秩 16，1 条 2048 个 token

# %%
from course_lib.tasks import check, hint
from course_lib.widgets import bill_explorer

bill_explorer("llama-7b", vary=("precision", "optimizer_impl", "lora_rank", "quant", "checkpoint", "batch", "seq"), lora_rank=16, batch=4)

falls = {"A": ..., "B": ..., "C": ..., "D": ...}
### BEGIN SOLUTION
falls = {"A": False, "B": True, "C": False, "D": True}
### END SOLUTION
check("checkpointing.peak_moves", falls)

# %% [markdown] lang="en"
# ## The riddle of the beginning
#
# Twelve small blocks, and the report's three ways beside the right one. Read the end of each line first, how many weights have a gradient:

# %% [markdown] lang="zh"
# ## 解开开头的谜
#
# 十二个小 block，报告里的三种做法，再加上正确的一种。每行先看后半句：有多少权重拿到了梯度。

# %%
import warnings

from torch import nn

from course_lib.probe import probe


class Residual(nn.Module):
    """``[B, H] -> [B, H]``"""

    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(x)


def block_by_block(net, x):
    for block in net:
        x = checkpoint(block, x, use_reentrant=False)
    return x


ways = {
    "no checkpoint": lambda net, x: net(x),
    "one around all": lambda net, x: checkpoint(net, x, use_reentrant=False),
    "one around all, reentrant": lambda net, x: checkpoint(net, x, use_reentrant=True),
    "one for each block": block_by_block,
}
peaks = {}
for name, way in ways.items():
    with torch.device("meta"):
        net, rows = nn.Sequential(*(Residual(64) for _ in range(12))), torch.randn(1024, 64)
    with probe(net) as measured, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        out = way(net, rows).sum()
        if out.requires_grad:
            out.backward()
    weights = list(net.parameters())
    with_gradient = sum(weight.grad is not None for weight in weights)
    peaks[name] = measured.peak_bytes / MIB
    print(f"{name:27}{peaks[name]:6.1f} MiB, {with_gradient:2} of {len(weights)} weights have a gradient"
          + "".join(f"\n   {str(each.message).split('.')[0]}" for each in warned))

# %% [markdown] lang="en"
# One checkpoint around everything saves nothing, because its recomputation brings all insides back at once: a **segment** must be small. And the reentrant variant saves because it does not train: its input needs no gradient, so PyTorch builds no graph and the blocks learn nothing. In a run with a trained layer outside it would not even raise an error. (The report's thread is still open; this is the reading that gives its pattern: as much, as much, and far less.)
#
# ## In practice: one line
#
# In transformers, checkpointing is one call before training. Say `use_reentrant=False` yourself; the default has changed between versions. And one thing switches it off again without a word: `model.eval()`, since blocks recompute only in training mode ([a frozen backbone in eval mode](https://github.com/huggingface/diffusers/issues/9850)).

# %% [markdown] lang="zh"
# 用一个检查点包住全部，什么也省不下，因为一重算，所有内部就同时回来了：**分段**必须小。而 reentrant 那种之所以省，是因为根本没在训练：输入不需要梯度，PyTorch 就不建图，各个 block 什么也学不到。要是外面还有一个在训练的层，连报错都不会有。（那个报告至今没有定论；这样解释，正好得到它的规律：一样、一样、少得多。）
#
# ## 实际使用：一行
#
# 在 transformers 里，训练之前调用一次就行。`use_reentrant=False` 要自己写明，因为各版本的默认值不一样。还有一件事会悄悄把它关掉：`model.eval()`，因为 block 只在训练模式下重算（[有人把冻结的主干设成了 eval](https://github.com/huggingface/diffusers/issues/9850)）。

# %%
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8, "num_attention_heads": 4}
for mode, switched_on in (("train", False), ("train", True), ("eval", True)):
    with torch.device("meta"):
        tiny = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=1000, use_cache=False))
        ids = torch.ones(4, 256, dtype=torch.long)
    if switched_on:  # named activation_checkpointing_enable in new versions
        enable = getattr(tiny, "activation_checkpointing_enable", None) or tiny.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    getattr(tiny, mode)()
    with probe(tiny) as measured:
        tiny(input_ids=ids, labels=ids).loss.backward()
    print(f"{mode:6}checkpointing {'on' if switched_on else 'off':4}peak {measured.peak_bytes / MIB:6.1f} MiB")

# %% [markdown] lang="en"
# ## Say it in an interview
#
# **How does gradient checkpointing work, and what does it cost?** "The forward pass keeps only the input of each segment, mostly one block. When the backward pass comes there, the block's forward pass runs again. The gradients are bitwise the same. It costs less than one forward pass more: 26 % of the FLOPs for a 7B, since the last product of each block and the head are not repeated; with LoRA 37 %, since there the backward pass is cheaper."
#
# **How much does it save?** "Of the activations of a 7B over 90 %: the inside of a block is over twenty times its input. Of the peak it depends: nothing if the peak is in the optimizer step, little if logits or weights own it. I look at the moment of the peak first."
#
# **I switched it on and nothing changed.** "Where is the peak? Is the segment too large, one checkpoint around everything? Is the model in eval mode? And the opposite: if it saved a lot, do the weights inside have gradients?"
#
# ## The next question
#
# The peak that is left grows with the batch. Can one train with a large batch and hold only a small one? That is `04_accumulation`. The sections below go deeper; they can wait.

# %% [markdown] lang="zh"
# ## 面试时这样说
#
# **梯度检查点的原理和代价？** “前向只留每一段的输入，一段通常是一个 block。反向走到那里，再把这个 block 的前向跑一遍。梯度一位不差。代价不到一次完整的前向：7B 多 26% 的 FLOPs，因为每个 block 的最后一次乘法和输出层不用重复；LoRA 是 37%，因为它的反向本来就便宜。”
#
# **能省多少？** “7B 的激活值能省九成以上，因为 block 的内部是它输入的二十多倍。峰值就要看情况：峰值在优化器更新，一点不省；被 logits 或权重占着，省得很少。所以我先看峰值在哪个时刻。”
#
# **开了检查点，显存没变？** “峰值在哪里？是不是用一个检查点包住了全部，段太大？模型是不是在 eval 模式？反过来也要查：要是省了很多，里面的权重有梯度吗？”
#
# ## 下一个问题
#
# 剩下的峰值随 batch 增长。能不能训练大 batch，却只放得下小 batch？答案在 `04_accumulation`。下面几节讲得更深，以后再看也行。

# %% [markdown] lang="en"
# ## Deeper: per block, or √n segments?
#
# "Checkpointing needs memory of order √n" is quoted everywhere. With segments of K blocks, ⌈n/K⌉ boundaries stay, and one segment's K insides come back while it is recomputed. If an inside were as large as a boundary, K = √n would be best, and the sum 2√n. Take a chain in which that is so: plain layers without anything between them.

# %% [markdown] lang="zh"
# ## 深入：每个 block 一段，还是 √n 段？
#
# 到处都说“检查点把显存降到 √n 级别”。每段 K 个 block，会留下 ⌈n/K⌉ 个边界；重算某一段时，它的 K 个内部又会回来。如果内部和边界一样大，K = √n 最好，总和是 2√n。先看一条真是这样的链：只有一个个线性层，中间什么都没有。

# %%
def chain_units(n, every=None):
    """The most boundaries [4096, 64] alive at once in a chain of ``n`` layers with segments of ``every``, or without."""
    with torch.device("meta"):
        layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(n))
        x = torch.randn(4096, 64, requires_grad=True)

    def segment(start, x):
        for layer in layers[start : start + (every or n)]:
            x = layer(x)
        return x

    with probe(layers) as measured:
        for start in range(0, n, every or n):
            x = checkpoint(segment, start, x, use_reentrant=False) if every else segment(start, x)
        x.sum().backward()
    coming_and_going = zip(measured.trace.account(Account.ACTIVATIONS), measured.trace.account(Account.TEMPORARY), strict=True)
    return max(map(sum, coming_and_going)) / (4096 * 64 * 4)


depths = (16, 64, 256)
units = {name: [chain_units(n, every(n)) for n in depths]
         for name, every in (("no checkpoint", lambda n: None), ("one per layer", lambda n: 1),
                             ("sqrt(n) segments", lambda n: round(n**0.5)))}
for name, row in units.items():
    print(f"chain, {name:17}" + "".join(f"{n:6} layers {size:6.1f}" for n, size in zip(depths, row, strict=True)))

# %%
from course_lib.comparisons import comparison_alt_text, peaks_by_moment

by_length = {every: ledger.predict(llama, replace(lora, checkpoint=f"every:{every}")) for every in range(1, 17)}
told = {every: by_length[every] for every in (1, 2, 4, 6, 16)}
for every, bill in told.items():
    print(f"7B LoRA, segments of {every:2}: peak {bill.peak_bytes / GIB:5.2f} GiB")
measured = dry_run_config(llama_config, replace(lora, checkpoint="every:2"))
print(f"measured, segments of 2: {measured.peak_bytes / GIB:.2f} GiB, of 1: {traces[1].peak_bytes / GIB:.2f} GiB")
boundary_bytes = lora.tokens * llama.hidden * 2  # one [B, T, H] in BF16
ratio = (left[0] - left[1]) / llama.layers / boundary_bytes
layers = next(n for n in range(2, 10_000) if n**0.5 + ratio * n**0.5 < n + ratio)  # the sum for K = sqrt(n), and for K = 1
print(f"inside / boundary {ratio:.0f}: sqrt(n) segments need less than one per block from {layers} layers on")
times = {name: row[2] / row[0] for name, row in units.items()}  # 16 times as deep
judge("C11", {"chain, sqrt(n) segments": 3 < times["sqrt(n) segments"] < 5, "chain, one per layer": times["one per layer"] < 5,
              "7B, sqrt(n) segments": by_length[6].peak_bytes < by_length[1].peak_bytes})
show(peaks_by_moment(by_length, "blocks in a segment"), comparison_alt_text(told))

# %% [markdown] lang="en"
# In the chain √n holds: 16 times the depth, 3.7 times the memory. (9, 17 and 33 are 2√n and one more, the tensor that is passing through.) One checkpoint per layer saves nothing at all there: 64 layers need 66 units with it and 66 without.
#
# In a transformer the inside is so much larger than the boundary that segments of √32 ≈ 6 blocks need *more* than one block each; two is the best there is, by a hair. So what everybody uses, one checkpoint per block, is linear in depth with a small constant, and that is no loss. √n would win from some 600 layers on.
#
# **Task.** Write the sum as a function: what is alive when a whole segment has been recomputed, `segments_bytes(n, every, boundary, inside)`.

# %% [markdown] lang="zh"
# 这条链上 √n 成立：深度变成 16 倍，显存只涨到 3.7 倍。（9、17、33 都是 2√n 再加 1，这个 1 是正在往下传的张量。）每层一个检查点在这里什么都省不下：64 层要 66 份，不设也是 66 份。
#
# transformer 里，内部比边界大得多，√32 ≈ 6 个 block 一段，反而比一个 block 一段*更*占显存；最好的是两个一段，也只好一点点。所以大家用的“每个 block 一个检查点”，其实随深度线性增长，只是常数很小，而且并不吃亏。要到六百多层，√n 才会赢。
#
# **任务。** 把这个和写成函数：整整一段重算完时活着多少字节，`segments_bytes(n, every, boundary, inside)`。

# %%
import math


def segments_bytes(n, every, boundary, inside):
    """Bytes of the inputs of all segments and of the insides of one, for ``n`` blocks in segments of ``every``."""
    ...
    ### BEGIN SOLUTION
    return math.ceil(n / every) * boundary + every * inside
    ### END SOLUTION


check("checkpointing.segments_bytes", segments_bytes)

# %% [markdown] lang="en"
# ## Deeper: recompute only what is cheap
#
# Not all of an inside is equally dear. Products of matrices cost nearly all FLOPs, the rest (norms, GELU, splitting heads) nearly none but as many bytes. **Selective** recomputation keeps the results of the operators that you name and repeats the others:

# %% [markdown] lang="zh"
# ## 深入：只重算便宜的
#
# 内部的东西贵贱不同。矩阵乘几乎占了全部 FLOPs，其余的（归一化、GELU、拆分多头）几乎不花计算，字节却不少。**选择性重算**留下你指定的算子的结果，只重算其他的：

# %%
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from course_lib.dryrun import on_meta

aten = torch.ops.aten
attention = [aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default]
products = [aten.mm.default, aten.addmm.default]
keep = {"attention": attention, "products": products}
wide = GPTConfig(layers=3, width=512, heads=8, vocab=4096, block_size=512)


def fresh(kept):
    """A GPT on meta in BF16, and its input; ``kept``: all, nothing or a list of operators."""
    with torch.device("meta"):
        model, tokens = GPT(wide).bfloat16(), torch.zeros(4, 512, dtype=torch.long)
    if kept in keep:
        checkpoint_blocks(model, context_fn=partial(create_selective_checkpoint_contexts, keep[kept]))
    elif kept == "nothing":
        checkpoint_blocks(model)
    return model, tokens


print(f"{'kept':12}{'left by forward':>17}{'FLOPs of the step':>20}")
for kept in ("all", "nothing", "attention", "products"):
    model, tokens = fresh(kept)
    with probe(model) as measured:
        next_token_loss(model(tokens), tokens).backward()
    model, tokens = fresh(kept)
    with on_meta("cuda"), FlopCounterMode(display=False) as counter:
        next_token_loss(model(tokens), tokens).backward()
    bytes_left = measured.trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS]
    print(f"{kept:12}{bytes_left / MIB:13.0f} MiB{counter.get_total_flops() / 1e9:13.0f} GFLOP")

# %% [markdown] lang="en"
# Keeping attention's result costs few bytes and saves the one product that grows with the square of the length: a bargain at long context. Keeping all products brings a third of the bytes off for a few per cent of compute. Between "all" and "nothing" there is a curve, and you may choose the point.
#
# ## Deeper: adapters that learn nothing
#
# The reentrant variant looks at its input only. With LoRA the embedding is frozen, so the first block's input needs no gradient, and everything trained lies inside. [Somebody](https://github.com/lm-sys/FastChat/issues/581) got an error, because nothing outside was trained; others had a trained head, and training ran, with adapters that never changed ([peft](https://github.com/huggingface/peft/issues/1142)).

# %% [markdown] lang="zh"
# 留下注意力的结果，字节花得少，省下的却是唯一随长度平方增长的那次乘法：上下文一长，非常划算。留下所有矩阵乘，字节能少三分之一，计算只多几个百分点。“全留”和“全不留”之间是一条曲线，挑哪个点由你。
#
# ## 深入：什么也没学到的适配器
#
# reentrant 变体只看自己的输入。LoRA 里嵌入层是冻结的，第一个 block 的输入不需要梯度，而要训练的全在里面。[有人](https://github.com/lm-sys/FastChat/issues/581)碰到了报错，因为外面没有任何要训练的东西；另一些人的输出层在训练，训练照常跑完，适配器却从头到尾没变过（[peft](https://github.com/huggingface/peft/issues/1142)）。

# %%
from course_lib.lessons.checkpointing import Adapted


def adapters_with_gradient(reentrant, input_needs_gradient):
    blocks, head = nn.ModuleList(Adapted() for _ in range(3)), nn.Linear(16, 1)
    x = torch.randn(4, 16, requires_grad=input_needs_gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the only sign that there is
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
    head(x).sum().backward()
    adapters = [weight for weight in blocks.parameters() if weight.requires_grad]
    return f"{sum(weight.grad is not None for weight in adapters)} of {len(adapters)}"


print("reentrant:", adapters_with_gradient(True, False))
print("reentrant, input needs a gradient:", adapters_with_gradient(True, True))
print("not reentrant:", adapters_with_gradient(False, False))

# %% [markdown] lang="en"
# Two cures: `use_reentrant=False`, or `model.enable_input_require_grads()`, which peft calls for you in some cases and not in others. Check once, after the first backward pass, that every weight you train has a gradient.
#
# **Task.** Write it so that all adapters learn: run `blocks` one after the other on `x`, each under a checkpoint of its own. `x` needs no gradient. The blocks are those above: `Adapted` is a frozen linear layer with a trained low-rank pair beside it.

# %% [markdown] lang="zh"
# 两种治法：`use_reentrant=False`，或者 `model.enable_input_require_grads()`，后者 peft 有时会替你调用，有时不会。第一次反向之后检查一遍：要训练的权重是不是都有梯度。
#
# **任务。** 写一个所有适配器都学得到的版本：让 `x` 依次经过 `blocks`，每个 block 各设一个检查点。`x` 不需要梯度。block 就是上面的 `Adapted`：一个冻结的线性层，旁边并一对要训练的低秩矩阵。

# %%
def adapters_learn(blocks, x):
    """The output of the last block, [B, H]; the backward pass recomputes one block at a time."""
    ...
    ### BEGIN SOLUTION
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x
    ### END SOLUTION


check("checkpointing.adapters_learn", adapters_learn)

# %% [markdown] lang="en"
# ## Deeper: dropout, drawn twice
#
# A block with dropout draws random numbers. Recomputed, it must draw the same ones, or the backward pass belongs to another forward pass. PyTorch therefore keeps the state of the random generator at each checkpoint and puts it back; `preserve_rng_state=False` saves that little work and gives wrong gradients:

# %% [markdown] lang="zh"
# ## 深入：dropout 抽两次
#
# 带 dropout 的 block 要抽随机数。重算时必须抽到同样的数，不然反向就对不上前向了。所以 PyTorch 在每个检查点记下随机数发生器的状态，重算前再放回去；`preserve_rng_state=False` 省下这一点点功夫，换来的是错的梯度：

# %%
def dropout_gradients(**how):
    torch.manual_seed(0)
    model = GPT(replace(config, dropout=0.1))
    if how:
        checkpoint_blocks(model, **how)
    torch.manual_seed(1)  # the same masks in the forward pass
    next_token_loss(model(tokens), targets).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


tokens, targets = draw_batch(8, 64, torch.Generator().manual_seed(0))
expected = dropout_gradients()
for preserve in (True, False):
    came = dropout_gradients(preserve_rng_state=preserve)
    off = ((came - expected).norm() / expected.norm()).item()
    print(f"preserve_rng_state={preserve}: bit for bit the same {torch.equal(came, expected)}, off by {off:.0%}")

# %% [markdown] lang="en"
# ## Deeper: the other trade, offloading
#
# Instead of computing an inside again, one can send it to the host's memory and fetch it back (`torch.autograd.graph.save_on_cpu`). Which is faster is a question of two speeds. Per block of the 7B, with 4 sequences: FLOPs to recompute, or bytes to move, there and back.

# %% [markdown] lang="zh"
# ## 深入：另一种交换，卸载到内存
#
# 内部除了重算，还可以先送到主机内存，用的时候再取回来（`torch.autograd.graph.save_on_cpu`）。哪个快，取决于两个速度。7B 的一个 block，4 条序列：要么重算这么多 FLOPs，要么把这么多字节搬过去再搬回来。

# %%
inside_bytes = (left[0] - left[1]) / llama.layers
block_weights = 4 * llama.hidden**2 + 3 * llama.hidden * llama.ffn
block_flops = 2 * block_weights * lora.tokens  # products of weights; attention's come on top
print(f"one block: {block_flops / 1e12:.1f} TFLOP to recompute, or 2 x {inside_bytes / GIB:.2f} GiB to move")
for tflops, gigabytes in ((30, 12), (70, 25), (300, 50)):  # examples; put in what your machine reaches
    print(f"at {tflops:3} TFLOP/s {1000 * block_flops / (tflops * 1e12):5.0f} ms; "
          f"at {gigabytes} GB/s {1000 * 2 * inside_bytes / (gigabytes * 1e9):5.0f} ms")
print(f"all blocks: {llama.layers * inside_bytes / GIB:.0f} GiB of host memory")

offloaded = GPT(config)
offloaded.load_state_dict(twin.state_dict())
with torch.autograd.graph.save_on_cpu():  # what is saved goes to the host, and comes back when it is used
    loss = next_token_loss(offloaded(tokens), targets)
loss.backward()
same = all(torch.equal(each.grad, other) for each, other in zip(offloaded.parameters(), gradients, strict=True))
print("the small GPT offloaded, gradients bit for bit the same:", same)

# %% [markdown] lang="en"
# Moving can overlap with computing, recomputing cannot; still, at such speeds recomputing is the better trade for a whole block, and it needs no host memory. Offloading is for what is dear to compute and small, or for the boundaries themselves at very long context. Neither touches the optimizer's peak. (The speeds are examples; put in your own.)
#
# ## Deeper: when it fails
#
# - **The peak is elsewhere**: optimizer step, logits, weights. Ask the ledger first; every cut on the wrong moment costs time and saves nothing.
# - **One layer alone is too large**: with one block recomputed at a time, its inside is the floor. At long context and eager attention that alone can be too much; a shorter sequence or another attention kernel helps, more checkpoints do not.
# - **It pays for room that you do not use**: up to 37 % more compute for a peak that would have fitted anyway. Checkpoint some blocks only, or use the room for a larger batch.
# - **State that a second run changes**: batch norm's running statistics are updated twice; anything that counts calls, too.
#
# Activations are cheap now. What is left of the batch's cost is in the next lesson: `04_accumulation`.

# %% [markdown] lang="zh"
# 搬运可以和计算重叠，重算不行；尽管如此，按这些速度，整个 block 还是重算更划算，而且不占主机内存。适合卸载的，是算起来贵、占得又少的东西，或者上下文特别长时的边界本身。优化器那个峰值，两种办法都碰不到。（速度只是举例，换成你自己机器的。）
#
# ## 深入：什么时候不管用
#
# - **峰值在别处**：优化器更新、logits、权重。先问账本；砍错了时刻，只花时间，不省显存。
# - **光一层就放不下**：每次重算一个 block，它的内部就是下限。上下文长、又用 eager 注意力，这一层就可能超了；缩短序列或换注意力内核有用，多设检查点没用。
# - **为用不上的空间付钱**：多花多达 37% 的计算，可是不设检查点本来也放得下。只给一部分 block 设检查点，或者把省出来的空间拿去加大 batch。
# - **第二遍会改动的状态**：批归一化的滑动统计会更新两次；凡是数调用次数的东西也一样。
#
# 激活值现在便宜了。batch 剩下的那部分代价，下一课再说：`04_accumulation`。
