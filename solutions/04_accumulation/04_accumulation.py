# %% [markdown] lang="en"
# # 04 · Gradient accumulation
#
# *The core takes 30 minutes, the deeper sections another 30. Before it: `01_ledger`. Afterwards you can say when eight small batches are one large batch, to rounding, and when they are not; and what the trick saves, and adds.*
#
# ## A loss five times too large
#
# A widely used trainer, in a release of late 2024, same data and same model as before ([the repair](https://github.com/huggingface/transformers/pull/35207)):
#
# | first step | printed | should be |
# |---|---|---|
# | loss | 10.5949 | 2.119 |
# | gradient norm | 188.29 | 37.66 |
#
# Nothing crashed. The curve went down. Is it only a number on a screen, or is something wrong with the training, too? And what would have to be divided by what? **When is a batch in pieces the same training as the batch?**

# %% [markdown] lang="zh"
# # 04 · 梯度累积
#
# *主线 30 分钟，深入部分再加 30 分钟。先学 `01_ledger`。学完以后，你说得清八个小 batch 什么时候等于一个大 batch（只差舍入），什么时候不等于；也说得清这一招省了什么，又添了什么。*
#
# ## 损失成了五倍
#
# 一个用得很广的训练器，2024 年底的一个版本，数据和模型都没变（[修复记录](https://github.com/huggingface/transformers/pull/35207)）：
#
# | 第一步 | 打印出来的 | 应该是 |
# |---|---|---|
# | 损失 | 10.5949 | 2.119 |
# | 梯度范数 | 188.29 | 37.66 |
#
# 没有报错，曲线也在往下走。这只是屏幕上的数字不对，还是训练本身出了问题？到底该拿什么除以什么？**一个 batch 切成几块，什么时候和不切是同一次训练？**

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# The classic recipe: do 8 micro-batches of 4 sequences, divide each loss by 8, then step once; it stands for one batch of 32. Suppose somebody **forgets to divide by 8**.
#
# 1. With AdamW, how far is the loss from the right one, at most, over 10 updates: `"a"` by rounding only, `"b"` by about 1 %, `"c"` by tens of per cent?
# 2. GPT-2 (124 million parameters, FP32, AdamW, 1024 tokens) takes 52 GiB at its peak with a batch of 32. How many GiB with 8 micro-batches of 4?

# %% [markdown] lang="zh"
# ## 预测
#
# 经典做法：8 个微批，每个 4 条，每次的损失除以 8，最后更新一次，用来代替一个 32 条的 batch。假设有人**忘了除以 8**。
#
# 1. 用 AdamW，10 次更新里，损失和正确的相比，最多差多少：`"a"` 只差舍入，`"b"` 差 1% 左右，`"c"` 差几成？
# 2. GPT-2（1.24 亿参数，FP32，AdamW，1024 个 token）batch 32 时峰值是 52 GiB。换成 8 个 4 条的微批，是多少 GiB？

# %%
from course_lib.journal import predict, settle

adam_differs = ...  # "a", "b" or "c"
gpt2_gib = ...  # GiB
### BEGIN SOLUTION
adam_differs = "c"
gpt2_gib = 52 / 8
### END SOLUTION
predict("accumulation.adam_differs", adam_differs)
predict("accumulation.gpt2_gib", gpt2_gib, unit="GiB")

# %% [markdown] lang="en"
# ## The same gradient, to rounding
#
# The mean over 32 sequences is the mean of eight means over 4, and `backward()` adds to what is there. So the gradients should be equal, but for the order of additions. Try it on the course's small GPT, with the course's own source code as its text. If it is rounding, it must shrink with FP64:

# %% [markdown] lang="zh"
# ## 同一个梯度，只差舍入
#
# 32 条的平均，等于 8 个“4 条的平均”再平均；而 `backward()` 是往已有的梯度上加。所以除了相加的顺序，梯度应该一样。拿课程的小 GPT 试一试，训练文本就是课程自己的源代码。要真是舍入，换成 FP64 就该变小：

# %%
import torch

from course_lib.accumulate import WHOLE, Way, gradient, relative_difference, small_gpt, windows

(window,) = windows(1)  # tokens and targets, [32, 32] each
print(f"{'8 pieces against 1':20}{'difference of the gradient':>28}{'its length':>14}")
for dtype in (torch.float32, torch.float64):
    model = small_gpt().to(dtype)
    whole = gradient(model, window, WHOLE)
    for divide in ("means", "nothing"):  # each mean loss by 8, or by nothing
        pieces = gradient(model, window, Way(8, divide))
        name = f"{str(dtype)[6:]}, {'loss / 8' if divide == 'means' else 'loss'}"
        print(f"{name:20}{relative_difference(pieces, whole):28.1e}{pieces.norm() / whole.norm():13.3f}x")

# %% [markdown] lang="en"
# Divided, the two differ by rounding: $10^{-7}$ in FP32, $10^{-16}$ in FP64. Not divided, the gradient is exactly eight times as long.
#
# ## What eight times the gradient does
#
# It depends on the optimizer. Five trainings, each beside the one with the whole batch:

# %% [markdown] lang="zh"
# 除以 8 之后，两者只差舍入：FP32 是 $10^{-7}$，FP64 是 $10^{-16}$。没除，梯度的长度正好是原来的 8 倍。
#
# ## 梯度大 8 倍会怎样
#
# 这要看优化器。下面五次训练，各和一次整 batch 的训练放在一起：

# %%
from course_lib.accumulate import adamw, sgd, train
from course_lib.exercises.curve_figures import loss_curves, loss_curves_text, relative_differences
from course_lib.figures import show


def faster_sgd(parameters):
    return torch.optim.SGD(parameters, lr=8 * 0.1)


data, undivided = windows(10), Way(8, "nothing")
by_sgd, by_adamw, clipped = (train(WHOLE, data, make, clip=clip) for make, clip in ((sgd, None), (adamw, None), (adamw, 4.0)))
pairs = {
    "SGD, loss / 8": (by_sgd, train(Way(8, "means"), data, sgd)),
    "SGD, loss": (by_sgd, train(undivided, data, sgd)),
    "AdamW, loss / 8": (by_adamw, train(Way(8, "means"), data, adamw)),
    "AdamW, loss": (by_adamw, train(undivided, data, adamw)),
    "AdamW, loss, clip at 4": (clipped, train(undivided, data, adamw, clip=4.0)),
}
apart = {name: max(relative_differences(*pair)) for name, pair in pairs.items()}
for name, difference in apart.items():
    print(f"{name:24} largest difference {difference:.1e}")
eight_times = max(relative_differences(train(WHOLE, data, faster_sgd), pairs["SGD, loss"][1]))
print(f"{'SGD, loss':24} against a learning rate 8 times as large {eight_times:.1e}")
print(f"length of the right gradient at the start: {gradient(small_gpt(), data[0], WHOLE).norm():.1f}")
print("clipping at 4 changes the right curve:", clipped != by_adamw, "\n")
differs = "a" if apart["AdamW, loss"] < 1e-5 else "b" if apart["AdamW, loss"] < 0.03 else "c"
settle("accumulation.adam_differs", differs)
show(loss_curves(pairs, "batch of 32", "8 x 4"), loss_curves_text(pairs, "32", "8 x 4"))

# %% [markdown] lang="en"
# - **SGD** takes the missing $1/N$ for a learning rate $N$ times as large: the same curve, not a similar one. (Rounding at first, that is; at so high a learning rate it grows from update to update, to some $10^{-5}$ at the tenth.)
# - **Adam** divides the gradient by its own recent size, so a constant factor falls out. The curve is the right one, and the mistake stays hidden.
# - Until something compares the gradient with a fixed number: **clipping** at 4 leaves the right gradient alone (3.0 long at the start) and cuts the one that is eight times as long, so the last pair parts (its difference leaves the grey band). Adam's $\epsilon$ is such a number, too.
#
# So the opening's question has an answer. The norm is computed from the gradients, and it is wrong by the same factor as the loss: what went into `backward()` was wrong. And whoever clips at 1, as trainers do by default, would not have seen it in the curve: both gradients are longer than 1, and both are cut to 1.
#
# ## Unequal tokens
#
# "Divide by $N$" has a condition in small print. A mean of means is the mean only where each has as many members. Sequences have different lengths, and padding or prompts are masked: a micro-batch of short answers may have a tenth of the targets of its neighbour, and its few tokens then count ten times as much. (The cell's last line sets the usual wording, number C13 in this course's list of claims, against its cases.)

# %% [markdown] lang="zh"
# - **SGD** 把少除的 $1/N$ 当成了大 $N$ 倍的学习率：曲线不是相像，而是同一条。（起初只差舍入；学习率这么大，舍入会逐次放大，到第 10 次更新时是 $10^{-5}$ 量级。）
# - **Adam** 会用梯度自己最近的大小去除它，常数倍就约掉了。曲线和正确的一样，错误藏了起来。
# - 直到有什么东西拿梯度去和一个固定的数比：在 4 处**裁剪**，正确的梯度（一开始长度是 3.0）碰不到，长 8 倍的就要挨裁，于是最后那一对岔开了（相对差出了灰带）。Adam 的 $\epsilon$ 也是这样一个固定的数。
#
# 开头的问题这就有答案了：范数是从梯度算出来的，它和损失错了同样的倍数，说明进入 `backward()` 的就已经不对。而训练器默认在 1 处裁剪，从曲线上反而看不出来：两个梯度都比 1 长，都被裁到 1。
#
# ## token 数不相等
#
# “除以 $N$”有一条小字写的前提：平均的平均，只有每份人数一样才等于总平均。序列有长有短，填充和提示词要掩掉：一个全是短回答的微批，目标 token 可能只有隔壁的十分之一，于是它那几个 token 每个都顶十个用。（单元最后一行，是拿流行的说法逐个情形去对：C13 是它在本课程论断清单里的编号。）

# %%
from course_lib.article import tell
from course_lib.models import IGNORED

(uneven,) = windows(1, uneven=True)
counts = [int((piece != IGNORED).sum()) for piece in uneven[1].chunk(8)]
model = small_gpt()
whole = gradient(model, uneven, WHOLE)
means, weighted = (gradient(model, uneven, Way(8, divide)) for divide in ("means", "tokens"))
print("targets in each micro-batch:", counts)
print(f"each mean / 8            gradient differs by {relative_difference(means, whole):.0%}")
print(f"each sum / all {sum(counts)} tokens gradient differs by {relative_difference(weighted, whole):.1e}")
print(f"a token of the first micro-batch counts {counts[-1] / counts[0]:.0f} times as much as one of the last")
tell("C13")

# %% [markdown] lang="en"
# The cure is to divide once, by what there is to divide by: sum the losses of a micro-batch, divide by the tokens of the **whole window**, that is, of all micro-batches of one update. For that the window has to be looked at before its first `backward()`. And the **last window** may have fewer than $N$ micro-batches: whoever divides it by $N$ all the same takes a smaller step, and whoever waits for $N$ drops it. Dividing by tokens gets it right without a thought.
#
# **Task.** Write what each micro-batch puts into `backward()`.

# %% [markdown] lang="zh"
# 解法是只除一次，除以真正该除的数：每个微批先把损失加起来，再除以**整个窗口**（一次更新的全部微批）的 token 数。这就要求在第一次 `backward()` 之前，先看一眼整个窗口。还有**最后一个窗口**，微批可能不满 $N$ 个：照样除以 $N$，这一步就迈小了；若非要凑满 $N$ 个才更新，这些数据就丢了。按 token 数来除，这些都不用操心。
#
# **任务。** 写出每个微批放进 `backward()` 的是什么。

# %%
from course_lib.tasks import check, hint


def window_losses(sums, counts):
    """What each micro-batch puts into backward().

    Args:
        sums: the summed loss of each micro-batch.
        counts: how many targets each has.

    Returns:
        A list as long as ``sums``.
    """
    ...
    ### BEGIN SOLUTION
    return [total / sum(counts) for total in sums]
    ### END SOLUTION


check("accumulation.window_losses", window_losses)

# %% [markdown] lang="en"
# ## The same curve
#
# With that, the classic experiment: accumulate 8 × 4 against one batch of 32, with unequal sequences. And what becomes of the usual claim, when one of its conditions fails?

# %% [markdown] lang="zh"
# ## 同一条曲线
#
# 现在来做那个经典实验：序列长短不一，累积 8 × 4 对比一个 32 的 batch。再看看，哪个前提不满足时，这个说法就不成立了？

# %%
unequal = windows(10, uneven=True)
whole_batch = train(WHOLE, unequal, adamw)
curves = {
    "sums / all tokens": (whole_batch, train(Way(8, "tokens"), unequal, adamw)),
    "mean of means": (whole_batch, train(Way(8, "means"), unequal, adamw)),
}
show(loss_curves(curves, "batch of 32", "8 x 4"), loss_curves_text(curves, "32", "8 x 4"))
tell("C18")

# %% [markdown] lang="en"
# ## What it saves, and what it adds
#
# Memory was the reason for all this. Somebody trained GPT-2 on a card with 5.93 GiB, batch 1, and accumulated **1024** micro-batches to be safe. Out of memory, on 198 MiB ([the report](https://github.com/huggingface/transformers/issues/1819)). Why did even 1024 not help?

# %% [markdown] lang="zh"
# ## 省了什么，添了什么
#
# 做这一切本是为了显存。有人在一块 5.93 GiB 的卡上训练 GPT-2，batch 1，为保险起见累积了 **1024** 个微批，还是显存不足，卡在 198 MiB 上（[原始报告](https://github.com/huggingface/transformers/issues/1819)）。为什么连 1024 也没用？

# %%
from dataclasses import replace
from math import ceil

from course_lib import ledger
from course_lib.accounts import ACCOUNTS
from course_lib.comparisons import comparison_alt_text, side_by_side
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config, read_model
from course_lib.recipe import Recipe
from course_lib.units import GIB, MIB

gpt2, fp32 = read_model("gpt2"), Recipe(precision="fp32", seq=1024)
splits = {f"{accum} x {batch}": replace(fp32, batch=batch, accum=accum)
          for batch, accum in ((32, 1), (8, 4), (4, 8), (1, 32), (1, 1), (1, 1024))}
splits["1024 x 1, eager"] = replace(splits["1024 x 1"], attention="eager")
bills = {name: ledger.predict(gpt2, recipe) for name, recipe in splits.items()}
print(f"{'GiB at the peak':16}" + "".join(f"{account:>13}" for account in ACCOUNTS) + f"{'together':>10}")
for name, bill in bills.items():
    row = "".join(f"{bill.at_peak[account] / GIB:13.2f}" for account in ACCOUNTS)
    print(f"{name:16}{row}{bill.peak_bytes / GIB:10.2f}")
logits_mib = 1024 * gpt2.vocab * 4 / MIB
print(f"\nlogits of one sequence: 1024 x {gpt2.vocab:,} x 4 B = {logits_mib:.1f} MiB, in steps of 2 MiB {2 * ceil(logits_mib / 2)}")
reported = {"total": 5.93, "allocated": 4.64, "cached": 233.05 / 1024, "free": 54.94 / 1024}  # GiB, from the message
print(f"the report: allocated and asked for {reported['allocated'] + 198 / 1024:.2f} GiB, "
      f"outside PyTorch's allocator {2 * reported['total'] - sum(reported.values()):.2f} GiB")

trace = dry_run_config(read_config("gpt2"), replace(splits["8 x 4"], accum=2))  # from the second on all are alike
settle("accumulation.gpt2_gib", trace.peak_bytes / GIB, unit="GiB")
show(side_by_side(bills), comparison_alt_text(bills))

# %% [markdown] lang="en"
# Accumulation divides **activations**, and what else grows with the batch, the logits' temporaries. It does not touch weights, gradients or optimizer state. And it adds: from the second micro-batch on, gradients are there *during* the forward pass, where before they grew as activations shrank, so 1 × 1 took 2.99 GiB and 1024 × 1 takes 3.48. (Activations are 1.22 there, not 1.20: token numbers, masks and labels of all 1024 sequences lie on the card.)
#
# That is with today's attention, and would have fitted. The eager attention of 2019 also kept its score matrices: 4.74 GiB for 1024 × 1. The report comes to 4.83, the 4.64 allocated and the 198 MiB asked for, and another GiB of the card was outside PyTorch's allocator. The 198 MiB have the size of one sequence's logits (196.3 MiB, rounded up to steps of 2 MiB); there is no micro-batch smaller than one. What would have helped were shorter sequences, or checkpointing.
#
# So accumulation is the right cut where activations are large *and* the batch can still be divided. It is often recommended "because gradients and optimizer state are the largest account". It shrinks neither.
#
# **Task.** GPT-2 under FP16 autocast on an RTX 2070 (8 GB), 64 sequences of 1024 tokens an update. Which is the largest micro-batch (1, 2, 4, …) that surely fits? The controls below give the verdict. Answer with a pair, (batch, accum).
#
# **Task.** The opening once more, in one word: was it the `"display"` that was wrong, or the `"gradient"`?

# %% [markdown] lang="zh"
# 累积缩小的是**激活值**，以及其他随 batch 长的东西（logits 的临时张量）。权重、梯度、优化器状态它都不碰。它还会多占一些：从第二个微批起，做*前向*的时候梯度就已经在了，而原来是激活值退一点、梯度才长一点。所以 1 × 1 是 2.99 GiB，1024 × 1 反而是 3.48。（激活值是 1.22 而不是 1.20：1024 条序列的 token 编号、掩码和标签全在卡上。）
#
# 这里算的是今天的注意力，本来放得下。2019 年的 eager 注意力还要存分数矩阵，同样 1024 × 1 是 4.74 GiB；报告里已分配的 4.64 加上正要的 198 MiB，是 4.83，另有约 1 GiB 不归 PyTorch 的分配器管。没要到的这 198 MiB，大小正是一条序列的 logits（196.3 MiB，分配器按 2 MiB 取整）；微批再小也小不过一条。有用的是把序列改短，或者设检查点。
#
# 所以，激活值大、*而且* batch 还能再分，才该用这一招。常有人推荐它，理由是“梯度和优化器状态占得最多”，可这两样它一样也缩不了。
#
# **任务。** GPT-2，FP16 autocast，RTX 2070（8 GB），每次更新 64 条 1024 个 token 的序列。肯定“装得下”的最大微批（1、2、4……）是多少？下面的控件会给出结论。用一对数回答：(batch, accum)。
#
# **任务。** 再看开头，用一个词回答：错的只是显示（`"display"`），还是梯度（`"gradient"`）？

# %%
from course_lib.widgets import bill_explorer

bill_explorer("gpt2", "RTX 2070", vary=("batch", "accum"), precision="amp-fp16", seq=1024, accum=64)

batch_and_accum = ...
### BEGIN SOLUTION
batch_and_accum = (2, 32)
### END SOLUTION
check("accumulation.micro_batch", batch_and_accum)

# %%
wrong_was = ...
### BEGIN SOLUTION
wrong_was = "gradient"
### END SOLUTION
check("accumulation.display_or_gradient", wrong_was)

# %% [markdown] lang="en"
# ## Say it in an interview
#
# **Is accumulation over 8 the same as a batch 8 times as large?** "To rounding, if losses are summed and divided by the tokens of the whole window, nothing normalises over the batch, and dropout aside. Dividing each mean by 8 is the same only with equal token counts."
#
# **What happens if one forgets to divide?** "The gradient is N times as large. SGD sees a learning rate N times as large. Adam hardly notices, until clipping or epsilon compares the gradient with a fixed number; so a correct-looking curve proves nothing. I would compare gradient norms."
#
# **What does it save?** "Activations and logits, by the number of pieces. Gradients stay resident in exchange, and weights and optimizer state are untouched. Below a micro-batch of one there is nothing to divide."
#
# ## The next question
#
# Three cuts are in hand now, precision, checkpointing and accumulation; one is to come. Together they should bring a 7B onto a 24 GB card. Do they? `05_recipe_24gb_7b`.

# %% [markdown] lang="zh"
# ## 面试时这样说
#
# **累积 8 次，和大 8 倍的 batch 一样吗？** “只差舍入，前提是：损失先求和、再除以整个窗口的 token 数；没有按 batch 做的归一化；dropout 另算。每个平均值除以 8，只有 token 数相等才对。”
#
# **忘了除会怎样？** “梯度大 N 倍。SGD 相当于学习率大 N 倍。Adam 几乎看不出来，直到裁剪或 epsilon 拿梯度去和固定的数比；所以曲线看着对，不说明问题。我会去比梯度范数。”
#
# **它省什么？** “激活值和 logits，分几块就缩到几分之一。代价是梯度一直驻留；权重和优化器状态不变。微批到了 1，就没得再分了。”
#
# ## 下一个问题
#
# 现在手里有了三招：精度、检查点、累积，还差一招。合起来应该能让 7B 上 24 GB 的卡。真的吗？`05_recipe_24gb_7b`。

# %% [markdown] lang="en"
# ## Deeper: unscale, clip, step, zero
#
# With FP16 a `GradScaler` multiplies the loss, so the gradients in `.grad` are too large by its scale, 65,536 at first. Clipping must see the real ones: `unscale_` comes first, once a window, after its last micro-batch. What does it do in the wrong order?

# %% [markdown] lang="zh"
# ## 深入：unscale、裁剪、step、清零
#
# 用 FP16 时，`GradScaler` 会把损失放大，所以 `.grad` 里的梯度大了一个缩放倍数，一开始是 65,536。裁剪要看到真正的梯度：先 `unscale_`，每个窗口一次，在最后一个微批之后。顺序反了会怎样？

# %%
from course_lib.accumulate import losses


def length_after(order):
    """The gradient's length at the step, when the window is clipped at 1 in this order."""
    model = small_gpt()
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for loss in losses(model, window, Way(8)):
        scaler.scale(loss).backward()
    for action in order:
        if action == "unscale":
            scaler.unscale_(optimizer)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if "unscale" not in order:
        scaler.unscale_(optimizer)  # step() would do it now
    return float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())


for order in (("unscale", "clip"), ("clip",), ("unscale",)):
    print(f"{' then '.join(order):20} the step sees a gradient of length {length_after(order):.6f}")

# %% [markdown] lang="en"
# Clipped before unscaling, the gradient that is left is 65,536 times too small: the model stands still, and no error says so. (`zero_grad` belongs after the step; at the head of each micro-batch it would throw the earlier ones away.)
#
# ## Deeper: batch norm
#
# Batch norm normalises by the mean and variance of *what is in the batch*, and in pieces of 4 that is something else than in 32. Layer norm looks at one token at a time:

# %% [markdown] lang="zh"
# 先裁剪、后 unscale，剩下的梯度小了 65,536 倍：模型原地不动，也没有任何报错。（`zero_grad` 要放在 step 之后；放在每个微批开头，前面攒的就全扔了。）
#
# ## 深入：BatchNorm
#
# BatchNorm 用 *batch 里这些样本*的均值和方差来归一化，4 条一块和 32 条一起，当然不一样。LayerNorm 每次只看一个 token：

# %%
from course_lib.accumulate import Normed

inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))  # [B, 16]
for norm in (torch.nn.BatchNorm1d, torch.nn.LayerNorm):
    classifier = Normed(norm)
    whole, pieces = (classifier.gradient(inputs, count) for count in (1, 8))
    print(f"{norm.__name__:12} 8 x 4 against 32: gradient differs by {relative_difference(pieces, whole):.1e}")
tell("C19")

# %% [markdown] lang="en"
# It is one reason for layer norm in language models, not the only one: sequences of different lengths, and generation token by token, would trouble batch norm as well.
#
# ## Deeper: time
#
# The same 32 sequences in fewer or more pieces, on this machine. On a graphics card small pieces keep the card less busy, and the gap is larger; each piece also reads all weights once more.

# %% [markdown] lang="zh"
# 这是语言模型用 LayerNorm 的原因之一，不是唯一的：序列长短不一、逐个 token 生成，BatchNorm 同样应付不来。
#
# ## 深入：时间
#
# 同样 32 条，在这台机器上切成几块来做。换成显卡，块小了卡就吃不饱，差距更大；而且每一块都要把全部权重再读一遍。

# %%
import time

model = small_gpt()
for pieces in (1, 2, 8, 32):
    gradient(model, window, Way(pieces))  # once to warm up
    start = time.perf_counter()
    for _repeat in range(3):
        gradient(model, window, Way(pieces))
    print(f"{pieces:2} x {32 // pieces:2}   {(time.perf_counter() - start) / 3 * 1000:7.1f} ms an update")

# %% [markdown] lang="en"
# ## Deeper: surviving a disconnect
#
# A long run on borrowed hardware will be cut off. Going on from the weights alone is not going on: Adam has forgotten its moments, dropout draws other numbers, and the data begin anew. Kill a run after 4 of 8 updates, bring it back, and compare with one that was never interrupted; then leave out one part at a time.

# %% [markdown] lang="zh"
# ## 深入：断线之后接着训
#
# 借来的机器上跑久了，总会断。只从权重接着训，不算接着训：Adam 忘了动量，dropout 抽的是另一批随机数，数据又从头来过。让一次训练在 8 次更新里的第 4 次之后断掉，再恢复，和没断过的比一比；然后每次少恢复一样：

# %%
import tempfile
from contextlib import suppress
from pathlib import Path

from course_lib.resume import EVERYTHING, resumable

data = windows(8)
uninterrupted = resumable(data)


class Disconnected(Exception):
    pass


def disconnect(update):
    if update == 4:
        raise Disconnected


def resumed_with(parts):
    """The losses after a run that was cut off at update 4 has been brought back with these parts."""
    file = Path(tempfile.mkdtemp(), "run.pt")
    with suppress(Disconnected):  # the process is gone; the file is not
        resumable(data, file, after_each=disconnect)
    return resumable(data, file, parts=parts)


print(f"{'brought back':20} next losses")
print(f"{'never interrupted':20}", [f"{loss:.4f}" for loss in uninterrupted[4:8]])
print(f"{'everything':20}", [f"{loss:.4f}" for loss in resumed_with(EVERYTHING)])
for missing in EVERYTHING:
    rest = [part for part in EVERYTHING if part != missing]
    print(f"{f'all but {missing}':20}", [f"{loss:.4f}" for loss in resumed_with(rest)[:4]])

# %% [markdown] lang="en"
# With everything the curve is the same, bit by bit. Without the weights a new model starts from the beginning. Without the optimizer's state the first loss is still the same, from the second on it differs; without the random numbers it differs at once; without the position the model sees the first data again, and nobody notices. The scaler changes nothing *here*, since a power of two is exact; in FP16 the run would have to find its scale again, by skipped steps.
#
# Two habits: write beside the old file and then replace it, since a run may be killed while it saves; and read the file into host memory first, since a second copy of Adam's state may be what no longer fits on the card.
#
# ## Deeper: when accumulation fails
#
# - **Micro-batch 1 does not fit.** Nothing left to divide: checkpointing, shorter sequences, or a smaller model.
# - **Several cards.** Each micro-batch would exchange gradients; `no_sync` waits for the last one. With sharded gradients (FSDP) that keeps whole gradients in memory between micro-batches, and accumulation costs memory.
# - **Updates in the backward pass** (lesson 05) drop each gradient at once: there is nothing to accumulate into.

# %% [markdown] lang="zh"
# 全部恢复，曲线一位不差。少了权重，等于换了个新模型从头训。少了优化器状态，第一个损失还一样，从第二个起就不同了；少了随机数，当场就不一样；少了数据位置，模型又从头看一遍数据，而且谁也发现不了。少了缩放器，在*这里*没有影响，因为乘的是 2 的幂，精确；换成 FP16，就得靠跳过几步重新找到合适的倍数。
#
# 两个好习惯：先写到旁边再替换旧文件，因为训练可能正好在保存时被杀；先把文件读进内存，因为显卡上装不下的，也许就是 Adam 状态的第二份副本。
#
# ## 深入：累积什么时候不管用
#
# - **微批 1 都装不下。** 没得再分：设检查点、改短序列，或者换小模型。
# - **多卡。** 每个微批都要交换梯度；`no_sync` 可以等到最后一个再交换。梯度分片时（FSDP），这会在微批之间留着完整的梯度，累积反而费显存。
# - **在反向传播途中更新**（05 课）：每份梯度当场就扔，没有东西可累积。
