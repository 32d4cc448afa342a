# %% [markdown] lang="en"
# # Exercise 3 · One large batch in small pieces
#
# *20 points · difficulty 3 of 5 · importance 4 of 5 · 60 to 90 minutes · any machine, no graphics card needed · after lesson 04*
#
# **Afterwards you can say**: when accumulating over N micro-batches gives exactly the training of one batch N times as large; which lines of a training loop decide it (what the loss is divided by, when the update comes, when gradients are dropped); where it cannot work; and which part of the memory bill it shrinks.
#
# ## The bug that sat in everybody's trainer
#
# In October 2024 it turned out that a training library used everywhere had accumulated wrongly: with padded or masked sequences, the loss with gradient accumulation was not that of the same data in one batch ([what was wrong, and the repair](https://huggingface.co/blog/gradient_accumulation)). Each micro-batch was averaged by itself, and then the averages were averaged. A loop of ten lines that many people had read.
#
# In this exercise you write that loop, right, and try it with the article's experiment: 8 micro-batches of 4 sequences against one batch of 32.
#
# ## How to work
#
# - Each step has a cell for your code, with a stub that you replace (all of it, `raise NotImplementedError()` included), and below it cells with tests. A test that fails says what was expected, what came, and what the usual cause is.
# - `train` grows: make the first tests pass, then go back to its cell and add what the next ones ask for.
# - When your work is graded, hidden tests check the same promises on other models, sizes and seeds. Each test cell earns its points on its own.
# - One answer is in words and is marked by a person. The last part runs on a graphics card, if you have one; it earns no points.
# - Both editions, English and Chinese, are graded alike.

# %% [markdown] lang="zh"
# # 练习 3 · 把一个大 batch 切成小块
#
# *20 分 · 难度 3/5 · 重要性 4/5 · 60 到 90 分钟 · 任何机器都行，不需要显卡 · 学完 04 课再做*
#
# **做完之后，你能说清**：N 个微批的梯度累积，什么时候和 N 倍大的 batch 训练得一模一样；训练循环里哪几行决定了这一点（损失除以什么、什么时候更新、什么时候清梯度）；它在哪里行不通；它缩小的是显存账单的哪一部分。
#
# ## 人人的训练器里都有过的 bug
#
# 2024 年 10 月，人们发现一个到处都在用的训练库累积梯度的方法不对：序列有填充或掩码时，用梯度累积得到的损失，和同样的数据放在一个 batch 里的损失对不上（[错在哪里，怎样修好](https://huggingface.co/blog/gradient_accumulation)）。原因是先在每个微批里求平均，再对这些平均求平均。这个循环只有十行，读过的人很多。
#
# 这个练习里，你要把这个循环写对，并用文章里的实验来检验：8 个 4 条序列的微批，对比一个 32 条的 batch。
#
# ## 怎么做
#
# - 每一步都有一个写代码的单元（把里面的占位代码换成你的，连 `raise NotImplementedError()` 一起），下面跟着测试单元。测试不通过时会告诉你：应该是多少，得到的是多少，常见原因是什么。
# - `train` 是一点点长大的：先让前面的测试通过，再回到它的单元，加上后面的测试要的东西。
# - 批改时，隐藏测试会换别的模型、别的尺寸、别的随机种子，检查同样的要求。每个测试单元各算各的分。
# - 有一题用文字回答，由人来批。最后一部分在显卡上跑，有显卡就做，不计分。
# - 中文版和英文版的评分完全一样。

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# A GPT of 15 million parameters is trained in FP32 with AdamW on 32 sequences of 256 tokens. The peak of one update with all 32 at once is 100 %. Where is it with 8 micro-batches of 4? Write your guess in place of the dots; it is kept, and nobody marks it.

# %% [markdown] lang="zh"
# ## 预测
#
# 一个 1500 万参数的 GPT，用 FP32 和 AdamW 训练，每次更新 32 条长 256 的序列。32 条一次做完，峰值算 100%；换成 8 个 4 条的微批，会是百分之多少？把省略号换成你的猜测；它会被记下来，但不打分。

# %%
from course_lib.journal import predict, settle

guess_percent = ...  # the peak with accumulation, in percent of the big batch's
predict("ex3.accumulated_peak", guess_percent, unit="%")

# %% [markdown] lang="en"
# ## 1 · The loop (10 points)
#
# Write `train(model, micro_batches, *, accum_steps, optimizer, max_grad_norm=None, scaler=None)`. It goes once through `micro_batches`, a list of pairs `(tokens, targets)`, int64 `[B, T]` each. `model(tokens)` gives logits. A target of −100 is masked: it is no token of the loss. `next_token_loss(logits, targets, reduction="sum")` is the summed loss over the unmasked targets, and `"mean"` is that sum ÷ their number.
#
# What it promises, with a test cell for each:
#
# | | promise | points |
# |---|---|---|
# | a | **Windows.** Every `accum_steps` micro-batches make a window, and each window one update. What is left at the end is a window, too, though shorter. The function returns a list with one number for each window: its summed loss ÷ its unmasked tokens, as it was before the update. | 2 |
# | b | **Gradients.** At the update they are those of the window's tokens in one big batch. Nothing of an earlier window is left in them. | 2 |
# | c | **Unequal micro-batches.** The same where micro-batches differ in their number of unmasked targets, or have none. | 2 |
# | d | **A window without any unmasked target** changes nothing, not even through Adam's momentum, and its entry is `nan`. | 1 |
# | e | **Clipping.** With `max_grad_norm` the gradient of the window is shortened to this norm, once, just before the update; it is never made longer. | 1 |
# | f | **A scaler.** With `scaler`, a `torch.amp.GradScaler`, losses are scaled before `backward()`. The gradients are unscaled before they are clipped, the scaler takes the step and is updated, once per window. The entries are not scaled. | 1 |
# | g | **Memory.** One micro-batch at a time: its backward pass comes before the next forward pass, and afterwards nothing holds its graph. The entries are plain numbers (`float`). | 1 |
#
# Make no optimizer of your own, and call neither `train()` nor `eval()`. To keep in mind: `backward()` *adds* to `.grad`, and something may be in there when your function is called.

# %% [markdown] lang="zh"
# ## 1 · 循环（10 分）
#
# 请写 `train(model, micro_batches, *, accum_steps, optimizer, max_grad_norm=None, scaler=None)`。它把 `micro_batches` 走一遍，这是一个列表，每一项是一对 `(tokens, targets)`，都是 int64 `[B, T]`。`model(tokens)` 得到 logits。目标为 −100 表示被掩掉，不算损失里的 token。`next_token_loss(logits, targets, reduction="sum")` 是未掩目标的损失之和，`"mean"` 是这个和 ÷ 它们的个数。
#
# 它要做到下面几条，每条一个测试单元：
#
# | | 要求 | 分 |
# |---|---|---|
# | a | **窗口。** 每 `accum_steps` 个微批是一个窗口，每个窗口更新一次。最后剩下的也是一个窗口，只是短一些。函数返回一个列表，每个窗口一个数：更新之前，窗口的损失之和 ÷ 窗口里未掩的 token 数。 | 2 |
# | b | **梯度。** 更新时的梯度，等于把窗口里的 token 放进一个大 batch 得到的梯度；里面没有以前窗口留下的东西。 | 2 |
# | c | **不一样大的微批。** 各微批的未掩目标数不同，甚至有的一个也没有，上面说的仍然成立。 | 2 |
# | d | **整个窗口没有一个未掩目标**时，什么都不变（也不能因为 Adam 的动量而变），它的那一项是 `nan`。 | 1 |
# | e | **裁剪。** 给了 `max_grad_norm`，就把窗口的梯度缩短到这个范数，只做一次，就在更新之前；绝不把它变长。 | 1 |
# | f | **scaler。** 给了 `scaler`（一个 `torch.amp.GradScaler`），损失在 `backward()` 之前放大；梯度先还原再裁剪；由 scaler 来更新，并更新它自己，每个窗口一次。列表里的数不放大。 | 1 |
# | g | **显存。** 一次只做一个微批：先做完它的反向传播，再做下一个前向传播，之后没有东西抓着它的计算图。列表里是普通的数（`float`）。 | 1 |
#
# 不要另建优化器，也不要调用 `train()` 或 `eval()`。记住：`backward()` 是往 `.grad` 上*加*，而函数被调用时，里面可能已经有东西了。

# %% answer="train"
from itertools import islice

import torch

from course_lib.models import next_token_loss


def train(model, micro_batches, *, accum_steps: int, optimizer, max_grad_norm=None, scaler=None) -> list[float]:
    """Train once through the micro-batches, with an update after every window; each window's loss per token."""
    ### BEGIN SOLUTION
    losses, rest = [], iter(micro_batches)
    optimizer.zero_grad()
    while window := list(islice(rest, accum_steps)):
        count = sum(int((targets != -100).sum()) for _tokens, targets in window)
        if count == 0:
            losses.append(float("nan"))
            continue
        window_loss = 0.0
        for tokens, targets in window:
            loss = next_token_loss(model(tokens), targets, reduction="sum") / count
            window_loss += loss.item()
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    return losses
    ### END SOLUTION

# %% [markdown] lang="en"
# **a · Windows**: 10 micro-batches of equal size, `accum_steps=4`. Two full windows, and one of two micro-batches.

# %% [markdown] lang="zh"
# **a · 窗口**：10 个一样大的微批，`accum_steps=4`。两个完整的窗口，再加一个只有两个微批的。

# %% tests="train-windows" points=2
from course_lib.exercises import accumulation

accumulation.check_windows(train)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

accumulation.check_windows(train, seed=20261, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# **b · Gradients**, for micro-batches of equal size. The learning rate is 0 here, so the weights stay, and each update's gradient can be compared with the big batch's.

# %% [markdown] lang="zh"
# **b · 梯度**，微批一样大。这里学习率是 0，权重不动，所以每次更新的梯度都能和大 batch 的比较。

# %% tests="train-gradients" points=2
from course_lib.exercises import accumulation

accumulation.check_gradients(train)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

accumulation.check_gradients(train, seed=20262, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# **c · Unequal micro-batches**: from none to 24 unmasked targets in each.

# %% [markdown] lang="zh"
# **c · 不一样大的微批**：每个里面有 0 到 24 个未掩的目标。

# %% tests="train-tokens" points=2
from course_lib.exercises import accumulation

accumulation.check_tokens(train)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

accumulation.check_tokens(train, seed=20263, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# **d · A window without targets**, the second of three. The optimizer is AdamW with weight decay.

# %% [markdown] lang="zh"
# **d · 没有目标的窗口**：三个窗口里的第二个。优化器是带权重衰减的 AdamW。

# %% tests="train-empty" points=1
from course_lib.exercises import accumulation

accumulation.check_empty(train)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

accumulation.check_empty(train, seed=20264, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# **e · Clipping**: the first update's gradient beside your own without a limit.

# %% [markdown] lang="zh"
# **e · 裁剪**：第一次更新的梯度，和你自己不裁剪时的比较。

# %% tests="train-clip" points=1
from course_lib.exercises import accumulation

accumulation.check_clip(train)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

accumulation.check_clip(train, seed=20265, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# **f · A scaler**, PyTorch's own on the CPU. In a second run a gradient overflows, and that update must not happen.

# %% [markdown] lang="zh"
# **f · scaler**：用 PyTorch 自己的，在 CPU 上。第二遍里有一个梯度上溢，那次更新不该发生。

# %% tests="train-scaler" points=1
from course_lib.exercises import accumulation

accumulation.check_scaler(train)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

accumulation.check_scaler(train, seed=20266, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# **g · Memory**: what is still alive when the next micro-batch comes.

# %% [markdown] lang="zh"
# **g · 显存**：下一个微批来的时候，还有什么活着。

# %% tests="train-released" points=1
from course_lib.exercises import accumulation

accumulation.check_released(train)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

accumulation.check_released(train, seed=20267, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# ## 2 · The same curve? (2 points)
#
# Adding up in another order moves a sum in its last digits, so two runs that are the same to a mathematician are not equal to the last bit. Write `same_curve(a, b)`, which answers `True` or `False`: are these two lists of losses equal up to rounding?
#
# - Compare entry by entry, by the **relative** difference: losses of 3 and of 0.000003 are treated alike.
# - A largest relative difference of 1e-5 is rounding (`True`), one of 1e-3 is not (`False`). Between them the choice is yours.
# - It does not matter which list comes first.
# - Lists of unequal length are not the same curve; nor is one in which there is a nan, whether in one list or in both.

# %% [markdown] lang="zh"
# ## 2 · 是同一条曲线吗？（2 分）
#
# 换个顺序相加，和的最后几位就会变；数学家眼里一样的两次训练，比到最后一个比特并不相等。请写 `same_curve(a, b)`，回答 `True` 或 `False`：这两列损失，除了舍入误差，是否相等？
#
# - 逐项比较，看**相对**误差：3 和 0.000003 的损失一视同仁。
# - 最大相对误差 1e-5 算舍入（`True`），1e-3 不算（`False`）；中间你自己定。
# - 哪一列在前无所谓。
# - 长度不同，就不是同一条曲线；有 nan 也不是，不管只在一列里还是两列都有。

# %% answer="same-curve"
def same_curve(a: list[float], b: list[float]) -> bool:
    """Whether two loss curves are equal up to rounding."""
    ### BEGIN SOLUTION
    return len(a) == len(b) and all(abs(x - y) <= 1e-4 * max(abs(x), abs(y)) for x, y in zip(a, b, strict=True))
    ### END SOLUTION

# %% tests="same-curve-tests" points=2
from course_lib.exercises import curves

curves.check_same_curve(same_curve)
### BEGIN HIDDEN TESTS
curves.check_same_curve(same_curve, curve=curves.some_curve(seed=20268))
### END HIDDEN TESTS

# %% [markdown] lang="en"
# ## 3 · The experiment
#
# Now the article's claim: `accum_steps=8` with micro-batches of 4 trains like one batch of 32. And two cases where it does not:
#
# - **Batch norm** normalises with mean and variance of the micro-batch that it sees: of 4 sequences, not of 32. Whatever you do with losses and gradients, that is another model.
# - **A mean of means**: the loop of a well-known kind, each micro-batch's mean loss ÷ 8. Here half the sequences have long answers, the others have an answer of one token, as in data for chat; a loader that sorts by length puts the short ones together.
#
# The data are made up: each token is followed by one of three others, so that the loss cannot fall below ln 3 = 1.10.

# %% [markdown] lang="zh"
# ## 3 · 实验
#
# 现在来看文章的说法：`accum_steps=8`、微批 4 条，训练起来和一个 32 条的 batch 一样。再看两个不成立的情况：
#
# - **batch norm** 用它看到的那个微批来算均值和方差：是 4 条，不是 32 条。损失和梯度怎么处理都没用，那就是另一个模型。
# - **平均的平均**：一种很常见的循环，每个微批的平均损失 ÷ 8。这里一半序列的回答很长，另一半的回答只有一个 token，聊天数据就是这样；按长度排序的加载器会把短的凑在一起。
#
# 数据是造出来的：每个 token 后面跟着三个 token 之一，所以损失不会低于 ln 3 = 1.10。

# %%
import torch
from torch import nn

from course_lib.exercises.curve_figures import loss_curves, loss_curves_text
from course_lib.figures import show
from course_lib.models import GPT, GPTConfig

torch.set_num_threads(1)  # for tensors this small, threads wait for each other longer than they work
small_gpt = GPTConfig(vocab=32, layers=1, heads=2, width=32, block_size=16)


class NormGPT(nn.Module):
    """An embedding, batch norm over all tokens of the batch, a head; ``[B, T] -> [B, T, V]``."""

    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.inner = nn.Linear(config.width, config.width)
        self.norm = nn.BatchNorm1d(config.width)
        self.head = nn.Linear(config.width, config.vocab)

    def forward(self, tokens):
        x = self.inner(self.embedding(tokens))  # [B, T, H]
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2).relu())


def stories(updates=30, batch=32, length=16, short=False):
    """Made-up sequences, ``[updates, batch, length + 1]`` and their targets; half with short answers, if ``short``."""
    draw = torch.Generator().manual_seed(1)
    follows = torch.randint(1, 32, (32, 3), generator=draw)
    tokens = torch.randint(1, 32, (updates, batch, length + 1), generator=draw)
    for place in range(length):
        choice = torch.randint(3, (updates, batch), generator=draw)
        tokens[..., place + 1] = follows[tokens[..., place], choice]
    targets = tokens[..., 1:].clone()
    if short:
        targets[:, batch // 2 :, :-1] = -100
    return tokens[..., :-1], targets


def losses_of(train, make_model, data, batch):
    """The curve of training with micro-batches of ``batch`` sequences and updates of 32."""
    torch.manual_seed(0)
    model = make_model(small_gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    pieces = [pair for tokens, targets in zip(*data, strict=True)
              for pair in zip(tokens.split(batch), targets.split(batch), strict=True)]
    return train(model, pieces, accum_steps=32 // batch, optimizer=optimizer, max_grad_norm=1.0)


def train_with_means(model, micro_batches, *, accum_steps, optimizer, max_grad_norm):
    """The well-known loop."""
    losses, running = [], 0.0
    for i, (tokens, targets) in enumerate(micro_batches):
        loss = next_token_loss(model(tokens), targets) / accum_steps
        loss.backward()
        running += loss.item()
        if (i + 1) % accum_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(running)
            running = 0.0
    return losses


pairs = {
    "your loop": (losses_of(train, GPT, stories(), 32), losses_of(train, GPT, stories(), 4)),
    "batch norm": (losses_of(train, NormGPT, stories(), 32), losses_of(train, NormGPT, stories(), 4)),
    "short answers, your loop": (
        losses_of(train, GPT, stories(short=True), 32), losses_of(train, GPT, stories(short=True), 4)),
    "short answers, mean of means": (
        losses_of(train, GPT, stories(short=True), 32), losses_of(train_with_means, GPT, stories(short=True), 4)),
}
for case, (big, small) in pairs.items():
    print(f"{case:30} the same curve: {same_curve(big, small)}")
show(lambda: loss_curves(pairs, "1 × 32", "8 × 4"), loss_curves_text(pairs, "1 × 32", "8 × 4"))

# %% [markdown] lang="en"
# Your loop gives the big batch's curve, up to rounding, with equal and with unequal micro-batches. With batch norm they differ by about one per cent on average and by four at most, which is far more than rounding, though the loop is the same. And the mean of means shows another loss, of another training: the few tokens of short answers count as much as the many of long ones.

# %% [markdown] lang="zh"
# 你的循环得到的就是大 batch 的曲线，只差舍入误差，微批一样大或不一样大都成立。用了 batch norm，循环没变，曲线却平均差了大约百分之一，最多差百分之四，远远超过舍入误差。而平均的平均给出的是另一个损失，训练也是另一回事：短回答的几个 token，和长回答的许多 token，分量一样重。

# %% [markdown] lang="en"
# ## 4 · Your own configuration (3 points)
#
# What does accumulation save? Below is a function that measures one FP32 update with AdamW on `meta`, as a card would show it, and the example of your prediction.

# %% [markdown] lang="zh"
# ## 4 · 你自己的配置（3 分）
#
# 梯度累积省下了什么？下面的函数在 `meta` 上量一次 FP32、AdamW 的更新，结果和显卡上会显示的一样；后面是预测时的那个例子。

# %%
from course_lib.probe import probe
from course_lib.units import format_bytes


def trace_of(config, batch, length, accum_steps, device="meta"):
    """The timeline of one update from ``accum_steps`` micro-batches: ``.peak_bytes``, ``.peak_moment``, ``.plot()``."""
    with torch.device(device):
        model = GPT(config)
        tokens = torch.zeros(batch, length, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for micro_batches in (1, accum_steps):  # the first update makes Adam's state
        with probe(model, optimizer) as measured:
            for _micro_batch in range(micro_batches):
                loss = next_token_loss(model(tokens), tokens) / micro_batches
                loss.backward()
                del loss
            optimizer.step()
            optimizer.zero_grad()
    return measured.trace


example = GPTConfig(vocab=4096, layers=4, heads=8, width=512, block_size=256)
peaks = {}
for batch, accum_steps in ((32, 1), (8, 4), (4, 8), (4, 2)):
    trace = trace_of(example, batch, 256, accum_steps)
    peaks[batch, accum_steps] = trace.peak_bytes
    print(f"{accum_steps:2} × {batch:2}   peak {format_bytes(trace.peak_bytes)} in {trace.peak_moment}")
settle("ex3.accumulated_peak", 100 * peaks[4, 8] / peaks[32, 1])

# %% [markdown] lang="en"
# Smaller micro-batches lower the peak; how many of them there are does not matter: 8 × 4 needs what 2 × 4 needs.
#
# Choose a model **you** would train: other sizes than the example's, between a million and ten billion parameters, at most 24 layers; and a window of `my_steps` micro-batches of `my_batch` sequences with `my_length` tokens, at most 131,072 tokens in all. Measure it in a cell of your own (a deep model takes a minute), and write down in **GiB**, with three significant digits:
#
# - `big_peak_gib`: the peak with all `my_steps × my_batch` sequences in one batch;
# - `accum_peak_gib`: the peak with micro-batches;
# - `kept_gib`: the gradients that stay from micro-batch to micro-batch. Work this one out: how many parameters, how many bytes each? (`sum(p.numel() for p in GPT(my_config).parameters())`, under `with torch.device("meta"):` where the model is large)
#
# Then say what would lower the peak with accumulation further. Choose a letter; the right one depends on your configuration:
#
# - **A** – Nothing that concerns the batch. The peak falls in the optimizer's step, where weights, gradients, Adam's state and a temporary are all there is.
# - **B** – A smaller micro-batch. The peak falls in the forward or backward pass, and the activations of one micro-batch are part of it.
# - **C** – More micro-batches of the same size: with N of them the peak is the big batch's ÷ N.
# - **D** – Fewer micro-batches: each of them keeps its own gradients until the update.

# %% [markdown] lang="zh"
# 微批小，峰值就低；微批有几个，却没有关系：8 × 4 要的和 2 × 4 一样。
#
# 选一个**你**想训练的模型：尺寸要和例子不同，参数在一百万到一百亿之间，最多 24 层；再定一个窗口：`my_steps` 个微批，每个 `my_batch` 条，每条 `my_length` 个 token，总共最多 131,072 个 token。另开一个单元来量（层数多的要一分钟），用 **GiB** 写下来，保留三位有效数字：
#
# - `big_peak_gib`：`my_steps × my_batch` 条全放在一个 batch 里的峰值；
# - `accum_peak_gib`：用微批的峰值；
# - `kept_gib`：从一个微批到下一个微批一直留着的梯度。这个要自己算：多少参数，每个几字节？（`sum(p.numel() for p in GPT(my_config).parameters())`，模型大就放在 `with torch.device("meta"):` 里）
#
# 然后说明怎样能让用了累积的峰值再低一些。选一个字母，哪个对取决于你的配置：
#
# - **A** – 和 batch 有关的都没用。峰值落在优化器更新里，那时只有权重、梯度、Adam 的状态和一份临时张量。
# - **B** – 更小的微批。峰值落在前向或反向传播里，其中有一个微批的激活值。
# - **C** – 更多同样大的微批：有 N 个，峰值就是大 batch 的 ÷ N。
# - **D** – 更少的微批：每个微批都把自己的梯度留到更新的时候。

# %% answer="own-configuration"
from course_lib.models import GPTConfig

my_config = ...  # GPTConfig(vocab=…, layers=…, heads=…, width=…, block_size=…)
my_batch = ...  # sequences in a micro-batch
my_length = ...  # tokens in each
my_steps = ...  # micro-batches in a window
big_peak_gib = ...
accum_peak_gib = ...
kept_gib = ...
reason = ...  # "A", "B", "C" or "D"
### BEGIN SOLUTION
my_config = GPTConfig(vocab=8192, layers=6, heads=8, width=512, block_size=512)
my_batch, my_length, my_steps = 4, 512, 8
big_peak_gib, accum_peak_gib, kept_gib = 4.83, 0.919, 0.0871
reason = "B"
### END SOLUTION

# %% tests="own-peaks" points=2
from course_lib.exercises import own_update

own_update.check_own_peaks(my_config, my_batch, my_length, my_steps, big_peak_gib, accum_peak_gib, kept_gib)

# %% tests="own-reason" points=1
from course_lib.exercises import own_update

own_update.check_own_reason(my_config, my_batch, my_length, my_steps, reason)

# %% [markdown] lang="en"
# ## 5 · Explain it (5 points, marked by a person)
#
# A colleague writes: *“My card holds 4 sequences, so I accumulate over 8 micro-batches; the paper used 32 at once. I divide each loss by 8, as the tutorial says. Still my curve is off the paper's, on our chat data. Our vision model, which has batch norm, is further off still. And going from 8 micro-batches to 16 did not save any more memory. Is accumulation a myth?”*
#
# Answer in five to ten sentences. A point each for:
#
# 1. why dividing each loss by 8 is not enough on chat data, and what to divide by instead;
# 2. why no division helps the vision model, and what could;
# 3. what accumulation shrinks and what it leaves as it is, supported by a number that you measured above, so why 16 saves no more than 8;
# 4. what becomes of training when the division is forgotten altogether: under SGD, and under Adam;
# 5. what accumulation costs.

# %% [markdown] lang="zh"
# ## 5 · 说清楚（5 分，由人批改）
#
# 一位同事来信：*“我的卡只放得下 4 条，所以我累积 8 个微批；论文是 32 条一次做完。我照教程说的，每个损失都除以 8。可是在我们的聊天数据上，我的曲线还是和论文的对不上。我们那个用 batch norm 的视觉模型，差得更远。而且微批从 8 个加到 16 个，显存一点也没多省。难道梯度累积是骗人的？”*
#
# 请用五到十句话回复。下面每条一分：
#
# 1. 在聊天数据上，为什么每个损失除以 8 还不够，应该除以什么；
# 2. 为什么怎样除都救不了那个视觉模型，什么办法可以；
# 3. 累积缩小了什么，什么没变，用你上面量到的一个数来支持，从而说明 16 个为什么不比 8 个省；
# 4. 如果完全忘了除，训练会怎样：用 SGD 时，用 Adam 时；
# 5. 累积的代价是什么。

# %% [markdown] lang="en" written="explain" points=5
# ### BEGIN SOLUTION
# Accumulation is no myth; three things are mixed up here. In chat data micro-batches have different numbers of unmasked tokens, and dividing each mean by 8 makes a mean of means, in which a token of a short answer counts more than one of a long answer: take summed losses and divide by the unmasked tokens of all 8 micro-batches. Batch norm takes mean and variance from the 4 images that it sees, not from 32, so the forward pass itself is another one; no division of losses mends that, only another norm (layer or group norm), frozen statistics, or synchronised batch norm over several cards. Accumulation shrinks the activations and the logits, which belong to one micro-batch at a time; weights, gradients and Adam's state stay whole, and the gradients stay even between micro-batches. In my measurement the example's peak fell from 1.57 GiB with 1 × 32 to 0.40 GiB with 8 × 4, and 2 × 4 had exactly the same peak as 8 × 4: what counts is the size of a micro-batch, not how many there are. Without any division the gradient is 8 times too long: SGD trains with 8 times the learning rate and may diverge, while Adam divides the factor out again and shows it mostly where gradients are clipped, since nearly every one is. The price is time: an update takes 8 small passes one after the other, which use the card less well, and there are fewer updates per epoch.
#
# **Mark scheme**, one point each:
#
# 1. Unequal numbers of unmasked tokens, and the division by all unmasked tokens of the window. “Divide by the batch size”: no point. Reasons without the remedy: no point.
# 2. Statistics come from the micro-batch, in the forward pass, and one remedy (layer or group norm, frozen statistics, synchronised batch norm).
# 3. Activations of one micro-batch shrink; weights, gradients, optimizer state stay; with a number of the student's own. “Memory is divided by 8” costs the point.
# 4. SGD: as a learning rate N times as high. Adam: (nearly) no change without clipping, or too strong clipping. Both halves are needed.
# 5. Time per update, worse use of the card, gradients that stay resident, or fewer updates per epoch; one of them is enough. “Nothing”: no point.
#
# Common: “the gradients are averaged by PyTorch” is wrong (they are added), and costs the point it is used for.
# ### END SOLUTION

# %% [markdown] lang="zh" written="explain" points=5
# ### BEGIN SOLUTION
# 梯度累积不骗人，只是三件事混在一起了。聊天数据里，各微批的未掩 token 数不同，每个平均损失除以 8，得到的是平均的平均，短回答里的一个 token 比长回答里的分量重：应该取损失之和，除以 8 个微批全部的未掩 token 数。batch norm 用它看到的 4 张图来算均值和方差，而不是 32 张，所以前向传播本身就不一样；损失怎么除都没用，要换一种归一化（layer norm 或 group norm）、固定统计量，或者在多张卡上用同步 batch norm。累积缩小的是激活值和 logits，它们每次只属于一个微批；权重、梯度、Adam 的状态一点没少，梯度在微批之间也一直留着。我量的例子里，峰值从 1 × 32 的 1.57 GiB 降到 8 × 4 的 0.40 GiB，而 2 × 4 的峰值和 8 × 4 完全一样：要看的是一个微批有多大，不是有几个。完全不除，梯度就长了 8 倍：SGD 相当于学习率高了 8 倍，可能发散；Adam 会把这个倍数约掉，主要在梯度裁剪时才显出来，因为几乎每次都会被裁。代价是时间：一次更新要先后做 8 遍小的计算，显卡利用率更低，每个 epoch 的更新次数也更少。
#
# **评分标准**，每条一分：
#
# 1. 说出未掩 token 数不同，并且要除以整个窗口的未掩 token 数。“除以 batch 大小”不给分；只有原因没有办法不给分。
# 2. 统计量来自微批，发生在前向传播里，并说出一种办法（layer norm 或 group norm、固定统计量、同步 batch norm）。
# 3. 变小的是一个微批的激活值；权重、梯度、优化器状态不变；并有自己量的一个数。“显存除以 8”丢这一分。
# 4. SGD：相当于学习率高 N 倍。Adam：不裁剪时（几乎）没变化，或者裁剪得过头。两半都要有。
# 5. 每次更新的时间、显卡利用率变低、梯度一直占着、每个 epoch 更新变少，说出一条即可。“没有代价”不给分。
#
# 常见情况：“PyTorch 会把梯度平均”是错的（是相加），用在哪一条，哪一条就丢分。
# ### END SOLUTION

# %% [markdown] lang="en"
# ## On a real card (no points)
#
# With a card, this trains a GPT of GPT-2's size there with your `train`, on 16 sequences of 256 tokens in one batch and in 8 micro-batches of 2, and keeps the peaks in your notebook, with card, versions and day. Without one it says so, and you are done.
#
# **On Colab's T4**, expect both to fit, and to agree with the dry run within a few per cent. The accumulated update takes longer, since a T4 is not busy with 2 sequences. Raise the batch until one of them is out of memory: the big batch goes first.

# %% [markdown] lang="zh"
# ## 在真的显卡上（不计分）
#
# 有显卡的话，这里会用你的 `train` 在它上面训练一个 GPT-2 大小的 GPT：16 条长 256 的序列，一次放在一个 batch 里，一次分成 8 个 2 条的微批；峰值会连同显卡、版本和日期留在你的 notebook 里。没有显卡的话，它会说一声，练习就做完了。
#
# **在 Colab 的 T4 上**，两个都应该放得下，和空跑相差百分之几以内。用累积的那次更新更慢，因为 2 条序列让 T4 忙不起来。把 batch 加大，直到有一个显存不足：先倒下的是大 batch。

# %%
from course_lib.exercises.evidence import record

gpt2_size = GPTConfig(vocab=50257, layers=12, heads=12, width=768, block_size=256)


def peak_on(device, batch, accum_steps):
    """Peak bytes of an update: predicted on ``meta``, measured on ``cuda`` with your ``train``."""
    if device == "meta":
        return trace_of(gpt2_size, batch, 256, accum_steps).peak_bytes
    with torch.device(device):
        model = GPT(gpt2_size)
        tokens = torch.randint(50257, (batch, 256))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _step in range(2):
        torch.cuda.reset_peak_memory_stats()
        train(model, [(tokens, tokens)] * accum_steps, accum_steps=accum_steps, optimizer=optimizer)
    return torch.cuda.max_memory_allocated()


record(lambda device: {f"{steps} × {batch}": peak_on(device, batch, steps) for steps, batch in ((1, 16), (8, 2))})

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

prepare("ex3_accumulation")
