# %% [markdown] lang="en"
# # Exercise 2 · What does checkpointing save, and what does it cost?
#
# *20 points · difficulty 4 of 5 · importance 4 of 5 · 90 to 120 minutes · any machine, no graphics card needed · after lesson 03*
#
# **Afterwards you can say**: what a checkpoint keeps and what it computes again; how to measure both; how many blocks belong into a segment; and which mistakes make a model learn nothing without an error.
#
# ## Training starts, and learns nothing
#
# Somebody fine-tunes a chat model with LoRA and runs out of memory. The advice is gradient checkpointing. It is switched on, and PyTorch stops at once ([the report](https://github.com/lm-sys/FastChat/issues/581)):
#
# ```
# RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn
# ```
#
# Others are less lucky: a single trained layer outside of the blocks is enough to silence the error, and the blocks never change. Advice that is off by a detail costs a day, and so do the usual figures: “saves 60–80 % of activations”, “costs 20–30 %”, “memory of order √n”. In this exercise you build checkpointing, measure what it saves and costs, and find out when √n is true.
#
# ## How to work
#
# - Each step has a cell for your code, with a stub that you replace (all of it, `raise NotImplementedError()` included), and below it cells with tests. Run them all. A test that fails says what was expected, what came, and what the usual cause is.
# - When your work is graded, hidden tests check the same promises on other models, sizes and seeds. Each test cell earns its points on its own.
# - One answer is in words and is marked by a person. The last part runs on a graphics card, if you have one; it earns no points.
# - Both editions, English and Chinese, are graded alike.

# %% [markdown] lang="zh"
# # 练习 2 · 检查点省了多少，又花了多少？
#
# *20 分 · 难度 4/5 · 重要性 4/5 · 90 到 120 分钟 · 任何机器都行，不需要显卡 · 学完 03 课再做*
#
# **做完之后，你能说清**：检查点留下什么、重算什么；两者怎样测；一段该有几个 block；以及哪些错误会让模型悄悄地什么也没学到。
#
# ## 训练跑起来了，却什么也没学到
#
# 有人用 LoRA 微调一个聊天模型，显存不够。别人建议开梯度检查点。一开，PyTorch 立刻停下（[原始报告](https://github.com/lm-sys/FastChat/issues/581)）：
#
# ```
# RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn
# ```
#
# 有人更倒霉：只要 block 之外还有一层在训练，错误就不出现了，而那些 block 的权重一直没变。建议差一个细节，就要赔上一天。流传的数字也不能全信：“激活值省 60–80%”“慢 20–30%”“显存降到 √n 级别”。这个练习里，你要自己写出检查点，测出它省多少、花多少，并弄清 √n 什么时候才成立。
#
# ## 怎么做
#
# - 每一步都有一个写代码的单元（把里面的占位代码换成你的，连 `raise NotImplementedError()` 一起），下面跟着几个测试单元，都要运行。测试不通过时会告诉你：应该是多少，得到的是多少，常见原因是什么。
# - 批改时，隐藏测试会换别的模型、别的尺寸、别的随机种子，检查同样的要求。每个测试单元各算各的分。
# - 有一题用文字回答，由人来批。最后一部分在显卡上跑，有显卡就做，不计分。
# - 中文版和英文版的评分完全一样。

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# A GPT of 8 blocks, trained in FP32 on 8 sequences of 256 tokens, with a checkpoint around each block. Which share of what is kept for the backward pass is saved? Write your guess in place of the dots; it is kept, and nobody marks it.

# %% [markdown] lang="zh"
# ## 预测
#
# 一个 8 个 block 的 GPT，用 FP32 训练，每步 8 条长 256 的序列，每个 block 各套一个检查点。留给反向传播的东西能省下百分之几？把省略号换成你的猜测；它会被记下来，但不打分。

# %%
from course_lib.journal import predict, settle

guess_percent = ...  # saved, in percent of what is kept without checkpointing
predict("ex2.activation_saving", guess_percent, unit="%")

# %% [markdown] lang="en"
# ## 1 · Checkpoint the blocks (9 points)
#
# A model has its blocks in `model.blocks` (an `nn.ModuleList`), and its forward pass calls them one after another: `x = block(x)`. Write `checkpoint_blocks(model, every=1)`. It changes the model **in place** and returns it:
#
# - each `every` consecutive blocks are one **segment**, what is left over is the last one: 5 blocks with `every=2` make segments of 2, 2 and 1;
# - a segment keeps its input alone; its inside is computed again in the backward pass;
# - this happens in **training mode only**; `model.eval()` gives the plain model back, `model.train()` the checkpointed one;
# - on the CPU the gradients are, bit for bit, those of the plain model, with dropout and the same seed, too;
# - blocks learn although the embedding is frozen, so that what enters the first of them needs no gradient;
# - the keys of `state_dict()` stay as they are;
# - `every` below 1 raises `ValueError`.
#
# The tool is `torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)`. It calls `function(*arguments)`, keeps the arguments, forgets everything inside, and calls the function again in the backward pass.
#
# A way that works: a block's `forward` is an attribute like any other. `block.forward = something` replaces it for this block alone, and `model(tokens)` then calls `something`. The first block of a segment can do the work of all, and the others pass on what they get. Two things to think of: keep the old `forward` before you replace it; and bind what belongs to a block to its new function (`functools.partial`, or a default argument), since a function made in a loop looks its variables up when it is called, and then the loop has ended.

# %% [markdown] lang="zh"
# ## 1 · 给 block 套上检查点（9 分）
#
# 模型的 block 都在 `model.blocks`（`nn.ModuleList`）里，前向传播依次调用它们：`x = block(x)`。请写 `checkpoint_blocks(model, every=1)`，它 **就地** 修改模型并返回它：
#
# - 每 `every` 个相邻的 block 是一**段**，剩下的是最后一段：5 个 block、`every=2`，分成 2、2、1 三段；
# - 一段只留它的输入，里面的东西在反向传播时重算；
# - **只在训练模式下**这样做；`model.eval()` 之后还是原来的模型，`model.train()` 之后又是带检查点的；
# - 在 CPU 上，梯度和原模型逐位相同，有 dropout、种子相同时也一样；
# - 嵌入层冻结时（第一个 block 的输入不需要梯度），block 照样能学到东西；
# - `state_dict()` 的键不变；
# - `every` 小于 1 时抛出 `ValueError`。
#
# 工具是 `torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)`。它调用 `function(*arguments)`，留下参数，忘掉里面的一切，到反向传播时再调用一次。
#
# 一种可行的做法：block 的 `forward` 不过是个属性。`block.forward = something` 只替换这一个 block 的，之后 `model(tokens)` 调用的就是 `something`。让一段里的第一个 block 做完整段的活，其余的把收到的原样传下去。有两点要当心：替换之前先留住原来的 `forward`；属于某个 block 的东西要绑定到它的新函数上（`functools.partial`，或默认参数），因为循环里定义的函数在调用时才去找变量，那时循环早就结束了。

# %% answer="checkpoint-blocks"
from functools import partial

from torch.utils.checkpoint import checkpoint


def checkpoint_blocks(model, every: int = 1):
    """Recompute each ``every`` consecutive blocks in the backward pass; in place, in training mode only."""
    ### BEGIN SOLUTION
    if every < 1:
        raise ValueError(f"every: got {every}, expected a number of blocks from 1")

    def run_segment(forwards, x, *args, **kwargs):
        for plain in forwards:
            x = plain(x, *args, **kwargs)
        return x

    def forward(block, position, forwards, x, *args, **kwargs):
        if not block.training:
            return forwards[position](x, *args, **kwargs)
        if position:  # the segment's first block has done this one's work
            return x
        return checkpoint(run_segment, forwards, x, *args, use_reentrant=False, **kwargs)

    blocks = list(model.blocks)
    for start in range(0, len(blocks), every):
        segment = blocks[start : start + every]
        forwards = [block.forward for block in segment]
        for position, block in enumerate(segment):
            block.forward = partial(forward, block, position, forwards)
    return model
    ### END SOLUTION

# %% tests="checkpoint-gradients" points=3
from course_lib.exercises import checkpointing

checkpointing.check_gradients(checkpoint_blocks)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

checkpointing.check_gradients(checkpoint_blocks, seed=20260901, model=MixGPT)
### END HIDDEN TESTS

# %% tests="checkpoint-segments" points=2
from course_lib.exercises import checkpointing

checkpointing.check_segments(checkpoint_blocks)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

checkpointing.check_segments(checkpoint_blocks, seed=20260901, model=MixGPT)
### END HIDDEN TESTS

# %% tests="checkpoint-dropout" points=1
from course_lib.exercises import checkpointing

checkpointing.check_dropout(checkpoint_blocks)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

checkpointing.check_dropout(checkpoint_blocks, seed=20260901, model=MixGPT)
### END HIDDEN TESTS

# %% tests="checkpoint-frozen" points=1
from course_lib.exercises import checkpointing

checkpointing.check_frozen(checkpoint_blocks)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

checkpointing.check_frozen(checkpoint_blocks, seed=20260901, model=MixGPT)
### END HIDDEN TESTS

# %% tests="checkpoint-modes" points=2
from course_lib.exercises import checkpointing

checkpointing.check_modes(checkpoint_blocks)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

checkpointing.check_modes(checkpoint_blocks, seed=20260901, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# ## 2 · What it saves and what it costs (3 points)
#
# Write `compare(make_model, batch, every=1)`. `make_model()` gives the same plain model each time, in training mode; `batch` is `(tokens, targets)`. Run one step (forward pass, `next_token_loss`, backward pass) of a plain model, and one of a model that your `checkpoint_blocks` has changed, and return a dict of three numbers:
#
# - `"activation_saving"` – **1 − with ÷ without**, where both are the bytes that are saved for the backward pass when forward pass and loss have ended. Parameters do not count, they are there anyway; a storage counts once, however often it is saved.
# - `"extra_flops"` – the FLOPs that checkpointing **adds**, as a fraction of the plain step, forward and backward together.
# - `"time_ratio"` – seconds of a step **with ÷ without**. It is recorded and not graded: on a small model it says little.
#
# Two counters that PyTorch brings:
#
# ```python
# from torch.autograd.graph import saved_tensors_hooks
# from torch.utils.flop_counter import FlopCounterMode
#
# def pack(tensor):            # is called with each tensor that is saved for the backward pass
#     return tensor            # tensor.untyped_storage() is what takes memory; its .nbytes() are bytes
#
# with saved_tensors_hooks(pack, lambda tensor: tensor):
#     ...                      # forward pass and loss
#
# with FlopCounterMode(display=False) as counter:
#     ...
# counter.get_total_flops()    # of everything that ran inside so far
# ```
#
# Whether two tensors share a storage: `a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()`. What `pack` must not do is let a storage die while its address is remembered, so keep what you count until the end.

# %% [markdown] lang="zh"
# ## 2 · 省多少，花多少（3 分）
#
# 请写 `compare(make_model, batch, every=1)`。`make_model()` 每次返回同样的原模型（训练模式），`batch` 是 `(tokens, targets)`。用原模型跑一步（前向传播、`next_token_loss`、反向传播），再用你的 `checkpoint_blocks` 改过的模型跑一步，返回三个数的字典：
#
# - `"activation_saving"` – **1 − 有 ÷ 无**，两者都是前向传播和损失算完时，为反向传播保存的字节数。参数不算，它们本来就在；同一块存储不管保存几次，只算一次。
# - `"extra_flops"` – 检查点**多出来的** FLOPs，占原来一步（前向加反向）的比例。
# - `"time_ratio"` – 一步的秒数，**有 ÷ 无**。只记录，不计分：模型小的时候它说明不了什么。
#
# PyTorch 自带两个计数器：
#
# ```python
# from torch.autograd.graph import saved_tensors_hooks
# from torch.utils.flop_counter import FlopCounterMode
#
# def pack(tensor):            # 每个为反向传播保存的张量，都会传给它
#     return tensor            # 真正占内存的是 tensor.untyped_storage()，它的 .nbytes() 是字节数
#
# with saved_tensors_hooks(pack, lambda tensor: tensor):
#     ...                      # 前向传播和损失
#
# with FlopCounterMode(display=False) as counter:
#     ...
# counter.get_total_flops()    # 到目前为止里面跑过的全部
# ```
#
# 两个张量是否共用一块存储：`a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()`。`pack` 记着一个地址的时候，那块存储不能被释放，所以数过的东西要留到最后。

# %% answer="compare"
import time

from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from course_lib.models import next_token_loss


def compare(make_model, batch, every: int = 1) -> dict[str, float]:
    """What checkpointing saves of the activations, the FLOPs it adds, and how much longer a step takes."""
    ### BEGIN SOLUTION
    tokens, targets = batch

    def step_of(model):
        """Bytes saved for the backward pass, FLOPs and seconds of one step."""
        parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        saved = {}  # storages by address; holding them keeps an address from being used again

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                saved[storage.data_ptr()] = storage
            return tensor

        with FlopCounterMode(display=False) as counter:
            with saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = next_token_loss(model(tokens), targets)
            loss.backward()
        saved_bytes = sum(storage.nbytes() for storage in saved.values())
        start = time.perf_counter()  # a second step: the first pays for what is loaded lazily
        next_token_loss(model(tokens), targets).backward()
        return saved_bytes, counter.get_total_flops(), time.perf_counter() - start

    plain_bytes, plain_flops, plain_seconds = step_of(make_model())
    saved_bytes, flops, seconds = step_of(checkpoint_blocks(make_model(), every))
    return {
        "activation_saving": 1 - saved_bytes / plain_bytes,
        "extra_flops": flops / plain_flops - 1,
        "time_ratio": seconds / plain_seconds,
    }
    ### END SOLUTION

# %% tests="compare-saving" points=2
from course_lib.exercises import checkpointing

checkpointing.check_compare(compare, checkpoint_blocks, "activation_saving")
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

checkpointing.check_compare(compare, checkpoint_blocks, "activation_saving", seed=20260902, model=MixGPT)
### END HIDDEN TESTS

# %% tests="compare-flops" points=1
from course_lib.exercises import checkpointing

checkpointing.check_compare(compare, checkpoint_blocks, "extra_flops")
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

checkpointing.check_compare(compare, checkpoint_blocks, "extra_flops", seed=20260902, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# Now the model of your prediction, and beside the numbers the picture: live memory over one training step, plain and with a checkpoint around each block. It runs on the meta device, so it is what a card would show.

# %% [markdown] lang="zh"
# 现在来看预测时说的那个模型。数字旁边再配一张图：一步训练里占用的内存，上面是原模型，下面是每个 block 套了检查点的。它在 meta 设备上跑，所以就是显卡会显示的样子。

# %%
import torch

from course_lib.exercises.figures import two_timelines
from course_lib.figures import show
from course_lib.models import GPT, GPTConfig
from course_lib.plots import alt_text
from course_lib.probe import probe

example = GPTConfig(vocab=4096, layers=8, heads=8, width=512, block_size=256)


def traces_of(config, batch, length, device="meta", everys=(0, 1)):
    """The second training step's trace (AdamW, FP32) by segment length; 0 is the plain model."""
    found = {}
    for every in everys:
        with torch.device(device):
            model = GPT(config)
            tokens = torch.randint(config.vocab, (batch, length))
        if every:
            checkpoint_blocks(model, every)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            with probe(model, optimizer) as measured:
                next_token_loss(model(tokens), tokens).backward()
                optimizer.step()
                optimizer.zero_grad()
        found[every] = measured
    return found


tokens = torch.randint(256, (2, 65))
small = GPTConfig(vocab=256, layers=8, heads=4, width=64, block_size=64)
print(compare(lambda: GPT(small), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())))

traces = {every: measured.trace for every, measured in traces_of(example, batch=8, length=256).items()}
show(lambda: two_timelines(traces[0], traces[1]), f"{alt_text(traces[0])} {alt_text(traces[1])}")

# %% [markdown] lang="en"
# The hump of activations is gone. In the lower picture one block's inside appears again and again while the backward pass works through the blocks, and the peak now belongs to the optimizer's step, which checkpointing does not touch. The logits are untouched, too: they lie outside of the blocks.

# %% [markdown] lang="zh"
# 激活值堆成的大山不见了。下面那张图里，反向传播逐个处理 block，每次只冒出一个 block 的内部；峰值现在落在优化器更新里，那是检查点碰不到的。logits 也碰不到：它们在 block 之外。

# %%
from course_lib.exercises.segments import alive_after_forward


def kept_bytes(config, batch, length, every=0):
    """Bytes alive when forward pass and loss have ended, weights aside; on the meta device, as on a card."""
    with torch.device("meta"):
        model = GPT(config)
        tokens = torch.randint(config.vocab, (batch, length))
    return alive_after_forward(checkpoint_blocks(model, every) if every else model, (tokens, tokens))


plain, checkpointed = (kept_bytes(example, 8, 256, every) for every in (0, 1))
print(f"kept {plain:,} B, with a checkpoint around each block {checkpointed:,} B")
settle("ex2.activation_saving", 100 * (1 - checkpointed / plain))

# %% [markdown] lang="en"
# ## 3 · How many blocks in a segment? (2 points)
#
# With n blocks in segments of K, the backward pass needs at its worst moment
#
# $$\lceil n / K \rceil \cdot \text{boundary} + K \cdot \text{inside}$$
#
# bytes: the input of every segment (the *boundary*), and the *inside* of the K blocks that are being recomputed. Write `best_every(n_blocks, boundary_bytes, inside_bytes)`: the K from 1 to n that makes this smallest; of two that are equal the smaller one.

# %% [markdown] lang="zh"
# ## 3 · 一段放几个 block？（2 分）
#
# n 个 block，每段 K 个，反向传播在最吃紧的时刻需要
#
# $$\lceil n / K \rceil \cdot \text{边界} + K \cdot \text{内部}$$
#
# 字节：每一段的输入（*边界*），加上正在重算的 K 个 block 的*内部*。请写 `best_every(n_blocks, boundary_bytes, inside_bytes)`：从 1 到 n 中，让它最小的那个 K；一样小时取较小的。

# %% answer="best-every"
from math import ceil


def best_every(n_blocks: int, boundary_bytes: int, inside_bytes: int) -> int:
    """The number of blocks per segment that keeps the fewest bytes."""
    ### BEGIN SOLUTION
    return min(
        range(1, n_blocks + 1),
        key=lambda every: ceil(n_blocks / every) * boundary_bytes + every * inside_bytes,
    )
    ### END SOLUTION

# %% tests="best-every-tests" points=2
from course_lib.exercises import checkpointing

checkpointing.check_best_every(best_every, [(12, 100, 100), (12, 100, 1500), (16, 100, 50), (10, 100, 30), (6, 100, 20), (7, 100, 10)])
### BEGIN HIDDEN TESTS
checkpointing.check_best_every(best_every, checkpointing.some_blocks(seed=20260903))
### END HIDDEN TESTS

# %% [markdown] lang="en"
# ## 4 · Your own model (3 points)
#
# Choose a model that **you** would train in FP32, of other sizes than the example's: at least 2 layers, as many as you like (they are read off models of one and of two layers, see below), at most 131,072 tokens in a batch. Then give four numbers and a reason:
#
# - `my_boundary_bytes`: the bytes of what enters a block, one `[batch, length, width]` tensor;
# - `my_inside_bytes`: what one block keeps for its backward pass besides its input. Read it off two models of your sizes, with one and with two layers: `kept_bytes` gives what each keeps, and the second block adds its boundary and its inside;
# - `my_every`: what your `best_every` says for all your layers;
# - `reason`, a letter:
#     - **A** – K is 1: a block's inside is so much larger than its input that a second block in a segment costs more than the inputs it saves.
#     - **B** – K is more than 1: there are so many blocks that the inputs weigh as much as an inside; the best K lies near √(n · boundary ÷ inside).
#     - **C** – The best K is always √n, since checkpointing has memory of order √n.
#     - **D** – One segment around everything keeps the least, since it keeps one input only.

# %% [markdown] lang="zh"
# ## 4 · 你自己的模型（3 分）
#
# 选一个**你**想用 FP32 训练的模型，尺寸要和例子不同：至少 2 层，上不封顶（只用 1 层和 2 层的模型来量，见下），一个 batch 最多 131,072 个 token。然后给出四个数和一个理由：
#
# - `my_boundary_bytes`：进入一个 block 的东西占多少字节，也就是一个 `[batch, length, width]` 的张量；
# - `my_inside_bytes`：除了输入，一个 block 还为反向传播留下多少。用你的尺寸造两个模型，一个 1 层、一个 2 层：`kept_bytes` 给出各自留下的量，第二个 block 多出来的是它的边界和内部；
# - `my_every`：对你的全部层数，你的 `best_every` 怎么说；
# - `reason`，一个字母：
#     - **A** – K 是 1：一个 block 的内部比它的输入大得多，一段里再加一个 block，多占的比省下的输入还多。
#     - **B** – K 大于 1：block 很多，输入加起来和一个内部一样重；最好的 K 在 √(n · 边界 ÷ 内部) 附近。
#     - **C** – 最好的 K 总是 √n，因为检查点的显存是 √n 级别。
#     - **D** – 全部放进一段留得最少，因为只留一个输入。

# %% answer="own-model"
from course_lib.models import GPTConfig

my_config = ...  # GPTConfig(vocab=…, layers=…, heads=…, width=…, block_size=…)
my_batch = ...  # sequences
my_length = ...  # tokens in each
my_boundary_bytes = ...
my_inside_bytes = ...
my_every = ...
reason = ...  # "A", "B", "C" or "D"
### BEGIN SOLUTION
my_config = GPTConfig(vocab=8192, layers=24, heads=12, width=768, block_size=512)
my_batch, my_length = 8, 512
my_boundary_bytes = 12_582_912  # 8 · 512 · 768 numbers of 4 bytes
my_inside_bytes = 188_941_312
my_every, reason = 1, "A"
### END SOLUTION

# %% tests="own-bytes" points=2
from course_lib.exercises import own_segments

own_segments.check_own_bytes(my_config, my_batch, my_length, my_boundary_bytes, my_inside_bytes)

# %% tests="own-every" points=1
from course_lib.exercises import own_segments

own_segments.check_own_every(my_config, my_batch, my_length, my_boundary_bytes, my_inside_bytes, my_every, reason)

# %% [markdown] lang="en"
# ## 5 · Explain it (3 points, marked by a person)
#
# A colleague writes: *“Checkpointing brings activation memory down to order √n, that is in every textbook. I have put it around each of our 32 blocks and the peak has hardly moved, although each step takes longer. Our vocabulary has 128,000 words, we train all weights with Adam.”*
#
# Answer in five to eight sentences. A point each for:
#
# 1. what a checkpoint around each block keeps, in terms of n, and when order √n is true;
# 2. two things that can hold the peak where it is although checkpointing works, and how to see which it is;
# 3. what it costs, in FLOPs, with a number that you measured above, and why it is less than a whole forward pass there.

# %% [markdown] lang="zh"
# ## 5 · 说清楚（3 分，由人批改）
#
# 一位同事来信：*“检查点把激活显存降到 √n 级别，教科书都这么写。我给 32 个 block 各套了一个，峰值几乎没动，每一步却变慢了。我们的词表有 12.8 万，用 Adam 训练全部权重。”*
#
# 请用五到八句话回复。下面每条一分：
#
# 1. 每个 block 套一个检查点，留下的东西和 n 是什么关系，√n 什么时候成立；
# 2. 检查点在起作用，峰值却不动，可能的两个原因，以及怎样看出是哪一个；
# 3. 它多花多少 FLOPs，用你上面量到的一个数来说，并解释这个数为什么比一次完整的前向少。

# %% [markdown] lang="en" written="explain" points=3
# ### BEGIN SOLUTION
# A checkpoint around each block keeps one block input per block, so it grows linearly with n, only with a much smaller constant (about a sixteenth here), plus one block's inside. Order √n needs about √n segments, and pays for it with √n insides alive at once; with an inside of 15 inputs, a block per segment is best up to some 30 blocks. If the peak does not move, something else is highest: the logits and their gradient (128,000 numbers per token, outside of the blocks), or weights, gradients and Adam's state with the foreach temporary in the optimizer's step. A probe says in which moment the peak falls and which account is largest then. The cost was 22 % of the step's FLOPs without dropout, not 33 %: recomputation stops as soon as everything that was saved is there again, so the last matrix product of each block is not run a second time.
#
# **Mark scheme**, one point each:
#
# 1. Linear in n (one input per block) *and* √n only with about √n segments. “It is O(√n)” for per-block checkpointing: no point.
# 2. Two of: logits, optimizer step with its temporary, static bytes, one block's inside at long sequences; **and** a way to see it (moment of the peak, bill at the peak). Without the way: no point.
# 3. A number of the student's own between 0.15 and 0.34 *and* a reason: early stop skips what comes after the last saved tensor. With dropout the number is near 0.33 and the reason is that there is nothing left to skip; that earns the point, too.
# ### END SOLUTION

# %% [markdown] lang="zh" written="explain" points=3
# ### BEGIN SOLUTION
# 每个 block 套一个检查点，每个 block 都要留一个输入，所以随 n 线性增长，只是系数小得多（这里大约十六分之一），再加上一个 block 的内部。要做到 √n，得分成大约 √n 段，代价是 √n 个 block 的内部同时活着；内部是输入的 15 倍时，30 个 block 以内都是一段一个最好。峰值不动，说明最高的是别的东西：logits 和它的梯度（每个 token 12.8 万个数，在 block 之外），或者优化器更新时的权重、梯度、Adam 状态加上 foreach 的临时张量。用探针看峰值落在哪个时刻、那时哪个账目最大。没有 dropout 时多花了 22% 的 FLOPs，不是 33%：重算到保存过的张量都有了就停下，所以每个 block 最后一个矩阵乘法不用再做一遍。
#
# **评分标准**，每条一分：
#
# 1. 随 n 线性（每个 block 一个输入）**并且** √n 只在大约 √n 段时成立。对每块一个检查点说“是 O(√n)”不给分。
# 2. 说出两个：logits、优化器更新和它的临时张量、静态字节、序列很长时一个 block 的内部；**并且**说出怎样看（峰值的时刻、峰值处的账单）。没说怎样看不给分。
# 3. 自己量到的数，在 0.15 到 0.34 之间，**并且**有理由：提前停止，最后一个被保存的张量之后的都跳过了。有 dropout 时这个数接近 0.33，理由是没有可跳过的，同样给分。
# ### END SOLUTION

# %% [markdown] lang="en"
# ## On a real card (no points)
#
# With a card, this trains a GPT of GPT-2's size there for a few steps, plain and with segments of 1 and 4 blocks, and keeps peaks and the ratio of times in your notebook, with card, versions and day. Without one it says so, and you are done.
#
# **On Colab's T4**, expect the peaks to agree with the dry run within a few per cent; everything is FP32, which a T4 computes natively. With every block checkpointed the peak is the optimizer's step, so longer segments change nothing. A step takes up to a third longer; on a card that is waiting for small kernels anyway it is less.

# %% [markdown] lang="zh"
# ## 在真的显卡上（不计分）
#
# 有显卡的话，这里会用它把一个 GPT-2 大小的 GPT 训练几步：原模型，以及每段 1 个、4 个 block 的；峰值和时间之比连同显卡、版本和日期留在你的 notebook 里。没有显卡的话，它会说一声，练习就做完了。
#
# **在 Colab 的 T4 上**，峰值应该和空跑相差百分之几以内；全部用 FP32，T4 原生支持。每个 block 都套检查点时，峰值在优化器更新里，所以段再长也没有变化。一步最多慢三分之一；如果显卡本来就在等一个个小 kernel，慢得更少。

# %%
from course_lib.exercises.evidence import record

gpt2_size = GPTConfig(vocab=50257, layers=12, heads=12, width=768, block_size=512)


def peaks_on(device):
    traces = traces_of(gpt2_size, batch=4, length=512, device=device, everys=(0, 1, 4))
    return {f"every={every}" if every else "plain": measured.peak_bytes for every, measured in traces.items()}


record(peaks_on)
if torch.cuda.is_available():
    tokens = torch.randint(50257, (4, 512), device="cuda")
    print("time ratio", compare(lambda: GPT(gpt2_size).to("cuda"), (tokens, tokens))["time_ratio"])

# %% [markdown] lang="en"
# ## Hand it in
#
# This cell looks at your notebook and tells you which file to hand in.

# %% [markdown] lang="zh"
# ## 提交
#
# 这个单元会检查你的 notebook，并告诉你该提交哪个文件。

# %%
from course_lib.exercises.submission import prepare

prepare("ex2_checkpointing")
