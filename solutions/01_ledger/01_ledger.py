# %% [markdown] lang="en"
# # 01 · The memory ledger
#
# *The core takes 20 minutes, the deeper sections another 40. Before it: `00_start`. Afterwards you can write the memory bill of a training step before you run it, and say at which moment it is due.*
#
# ## Twenty gigabytes of eighty, and out of memory
#
# Somebody fine-tunes LLaMA-7B on one A100 with 80 GB. Once loaded, the model takes 20 of them. Then the first backward pass stops ([the report](https://github.com/tatsu-lab/stanford_alpaca/issues/221)):
#
# | the report says | |
# |---|---|
# | card | 80 GB |
# | after loading the model | 20 GB |
# | tried to allocate | 86.00 MiB |
#
# Three quarters of the card were free, and now 86 MiB cannot be had. Very strange, writes the author. It is the riddle that everyone meets on a smaller card, too: the file of a 7B model has less than 14 GB, and 24 GB do not train it. **Who has the rest?**

# %% [markdown] lang="zh"
# # 01 · 显存账本
#
# *主线 20 分钟，深入部分再加 40 分钟。先学 `00_start`。学完以后，不用开跑就能写出一步训练的显存账单，还能说出它在哪个时刻最高。*
#
# ## 80 GB 的卡只占了 20 GB，训练却爆了显存
#
# 有人在一块 80 GB 的 A100 上微调 LLaMA-7B。模型加载完只占 20 GB，第一次反向传播却报显存不足（[原始报告](https://github.com/tatsu-lab/stanford_alpaca/issues/221)）：
#
# | 报告里的数字 | |
# |---|---|
# | 显卡 | 80 GB |
# | 加载模型之后 | 20 GB |
# | 想再分配 | 86.00 MiB |
#
# 明明还空着四分之三，现在连 86 MiB 都要不到，提问的人觉得“非常奇怪”。换成小一点的卡，人人都遇到过同样的怪事：7B 的模型文件不到 14 GB，24 GB 的卡却训不动。**剩下的显存被谁占了？**

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# Take one training step of Llama-2-7B: everything in FP32, AdamW as PyTorch runs it on a card unless told otherwise, one sequence of 2048 tokens. Two guesses:
#
# 1. How many GB ($10^9$ bytes) of tensors are there when it is worst?
# 2. In which part of the step is that: `"forward"`, `"backward"` or `"optimizer_step"`?

# %% [markdown] lang="zh"
# ## 预测
#
# 设想 Llama-2-7B 训练一步：全部用 FP32，优化器是 PyTorch 在显卡上默认的 AdamW，输入一条 2048 个 token 的序列。猜两件事：
#
# 1. 显存最紧张的时候，张量一共占多少 GB（$10^9$ 字节）？
# 2. 那一刻落在一步里的哪一段：`"forward"`（前向）、`"backward"`（反向），还是 `"optimizer_step"`（优化器更新）？

# %%
from course_lib.journal import predict, settle

peak_gb = ...  # a number of GB
peak_moment = ...  # "forward", "backward" or "optimizer_step"
### BEGIN SOLUTION
peak_gb = 130  # the four bills of a textbook, added up
peak_moment = "backward"  # activations and gradients together
### END SOLUTION
predict("ledger.peak_gb", peak_gb, unit="GB")
predict("ledger.peak_moment", peak_moment)

# %% [markdown] lang="en"
# ## Four bills, by hand
#
# Training fills the card with four things:
#
# | bill | what it is | how large |
# |---|---|---|
# | **weights** | the parameters themselves | one number for each |
# | **gradients** | how the loss changes with each parameter | one number for each |
# | **optimizer state** | Adam's two running means, $m$ and $v$ | two numbers for each |
# | **activations** | what the forward pass leaves behind for the backward pass | depends on batch and length |
#
# For the first three the number of parameters $N$ is enough. An FP32 number has 4 bytes: $4N + 4N + 8N = 16N$.

# %% [markdown] lang="zh"
# ## 四笔账，先用手算
#
# 训练时占着显存的是四样东西：
#
# | 账目 | 是什么 | 多大 |
# |---|---|---|
# | **权重** | 参数本身 | 每个参数一个数 |
# | **梯度** | 损失对每个参数的变化率 | 每个参数一个数 |
# | **优化器状态** | Adam 的两个滑动平均 $m$ 和 $v$ | 每个参数两个数 |
# | **激活值** | 前向传播留给反向传播的中间结果 | 看 batch 和序列长度 |
#
# 前三笔只要知道参数量 $N$ 就能算。一个 FP32 数占 4 字节，所以是 $4N + 4N + 8N = 16N$。

# %%
from course_lib.hf_config import read_model
from course_lib.units import GB, GIB, MIB

llama = read_model("llama-7b")  # Llama-2-7B, its sizes alone
bytes_each = {"weights": 4, "gradients": 4, "optimizer": 8}  # FP32, AdamW

print(f"{'GB':12}{'N = 7.0e9':>12}{f'N = {llama.params:,}':>20}")
for bill_name, size in bytes_each.items():
    print(f"{bill_name:12}{size * 7.0e9 / GB:12.1f}{size * llama.params / GB:20.1f}")
print(f"{'together':12}{16 * 7.0e9 / GB:12.1f}{16 * llama.params / GB:20.1f}")
print(f"{'16-bit file':12}{2 * 7.0e9 / GB:12.1f}{2 * llama.params / GB:20.1f}")

matrix_bytes = llama.hidden * llama.ffn * 2  # one MLP matrix of one layer, [4096, 11008], 16 bit
print(f"\none matrix of one layer, in 16 bit: {matrix_bytes / MIB:.2f} MiB")

# %% [markdown] lang="en"
# Sixteen bytes a parameter: more than 80 GB, and no token has been read yet. And the 86 MiB of the report have a name: a single matrix of a single layer. It is the straw, not the load.
#
# ## Measure: a dry run
#
# But which of these bytes are there *at the same time*? Only a training step can tell. You need no card for it: a **dry run** executes the model's real code, forward pass, backward pass and AdamW, on PyTorch's *meta* device. Tensors have shapes and sizes there, but no memory; every allocation and its end is written down. It is the second step that counts, since Adam's state comes into being during the first.

# %% [markdown] lang="zh"
# 每个参数 16 字节：一个 token 都还没读，就已经超过 80 GB。报告里那 86 MiB 也有名有姓：只是某一层里的一个矩阵。它是最后一根稻草，不是真正的重量。
#
# ## 实测：空跑一遍
#
# 可是，哪些字节是*同时*存在的？这得真走一步训练才知道。不需要显卡：**空跑**在 PyTorch 的 *meta* 设备上执行真实的模型代码，前向、反向、AdamW 一样不少。meta 上的张量有形状、有大小，但不占内存；每一次分配和释放都会记下来。算数的是第二步，因为 Adam 的状态在第一步里才产生。

# %%
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config
from course_lib.recipe import Recipe

config = read_config("llama-7b")  # as in the model's config.json
fp32 = Recipe(precision="fp32", optimizer="adamw", optimizer_impl="foreach", batch=1, seq=2048)
trace = dry_run_config(config, fp32)

settle("ledger.peak_gb", trace.peak_bytes / GB, unit="GB")
settle("ledger.peak_moment", trace.peak_moment)

# %%
from course_lib.figures import show
from course_lib.plots import alt_text, timeline

show(timeline(trace), alt_text(trace))

# %% [markdown] lang="en"
# ## A maximum over moments, not a sum
#
# Read the picture from left to right. (It counts in GiB, $2^{30}$ bytes, as cards do; 1 GiB is 7 % more than 1 GB.)
#
# - **Load**: weights and Adam's state are there before the step begins.
# - **Forward**: activations pile up, layer upon layer.
# - **Backward**: layer by layer, activations are used and freed while gradients appear. The two are never complete together, so the total hardly moves.
# - **Optimizer step**: the activations are gone, and still this is the peak. On a card PyTorch's AdamW updates all tensors at once (`foreach`), and for that it needs the square root of $v$ of every weight at once: a temporary as large as the weights. That is the **fifth bill**, the one that nobody expects.
#
# Adding up bills answers a question that no card asks. A card asks for the highest moment. First the bill of each moment where it stands highest; then the peak again with one thing changed at a time, and a verdict on what is commonly claimed:

# %% [markdown] lang="zh"
# ## 峰值是各时刻的最大值，不是各项之和
#
# 从左往右看这张图。（图里用的是 GiB，即 $2^{30}$ 字节，和显卡的算法一致；1 GiB 比 1 GB 大 7%。）
#
# - **加载**：这一步还没开始，权重和 Adam 的状态就已经在了。
# - **前向**：激活值一层一层往上堆。
# - **反向**：每过一层，用掉一层激活值，长出一层梯度。两者从不会同时齐全，所以总量几乎不动。
# - **优化器更新**：激活值已经全没了，峰值却偏偏在这里。在显卡上，PyTorch 的 AdamW 默认一次更新所有张量（`foreach`），所有权重的 $v$ 要同时开平方，于是多出一份和权重一样大的临时张量。这就是谁都没料到的**第五笔账**。
#
# 把几笔账加起来，回答的是一个显卡从不关心的问题。显卡只问：最高的那个时刻是多少？先看每个时刻最高时的账单；再每次只改一样，看峰值变不变，并给一条流行的说法下个结论：

# %%
from course_lib.accounts import ACCOUNTS, STEP_MOMENTS, Account

at_highest = {}  # moment -> the bill when it stands highest
for moment in STEP_MOMENTS:
    positions = [i for i, event in enumerate(trace.events) if event.moment is moment]
    at_highest[moment] = trace.bill_at(max(positions, key=lambda i: trace.live_total[i]))

print(f"{'GB, at its highest':20}" + "".join(f"{moment:>16}" for moment in STEP_MOMENTS))
for account in ACCOUNTS:
    print(f"{account:20}" + "".join(f"{at_highest[m][account] / GB:16.1f}" for m in STEP_MOMENTS))
print(f"{'together':20}" + "".join(f"{sum(at_highest[m].values()) / GB:16.1f}" for m in STEP_MOMENTS))

activations = at_highest["forward"][Account.ACTIVATIONS]
print(f"\nfour bills added up: {(16 * llama.params + activations) / GB:.1f} GB")

# %%
from dataclasses import replace

from course_lib.claims import judge

traces = {
    "as it was": trace,
    "seq=512": dry_run_config(config, replace(fp32, seq=512)),
    "fused": dry_run_config(config, replace(fp32, optimizer_impl="fused")),
}
for name, each in traces.items():
    print(f"{name:10} {each.peak_bytes / GB:6.1f} GB in {each.peak_moment}")

by_hand = [size * 7.0e9 / GB for size in bytes_each.values()]
parts = {"4N, 4N, 8N": by_hand == [28, 28, 56], "activations": 10 * GB <= activations <= 40 * GB}
totals = {"foreach": trace.peak_bytes >= 120 * GB, "fused": traces["fused"].peak_bytes >= 120 * GB}
judge("C1", parts | totals)

# %% [markdown] lang="en"
# So the usual estimate, 120 GB and more, is right for the wrong reason: the activations that fill it up to there are not alive at the peak, a temporary tensor is. The reason matters, since it names the remedy. A quarter of the tokens changes nothing here; one argument, `AdamW(..., fused=True)`, takes a whole copy of the weights off.
#
# ## Reconcile: the ledger
#
# The dry run needs torch, the model's code and a second. The **ledger** writes the same bill from the sizes alone, in a millisecond; each line says how it is computed, and where that comes from. Can it be trusted? Set one against the other:

# %% [markdown] lang="zh"
# 所以常见的估计“120 GB 以上”说对了数，却说错了原因：凑到这个数的激活值，在峰值时刻已经不在了，在的是临时张量。原因要紧，因为办法跟着原因走：token 砍到四分之一，峰值纹丝不动；而写上 `AdamW(..., fused=True)`，立刻省下整整一份权重。
#
# ## 对账：账本
#
# 空跑要有 torch、有模型代码，还要花上一秒。**账本**只凭模型尺寸，一毫秒就写出同一份账单，每一行都写明怎么算、依据在哪里。信得过吗？拿两者对一对账：

# %%
from IPython.display import display

from course_lib import ledger
from course_lib.reconcile import reconcile

bill = ledger.predict(llama, fp32)
display(bill, reconcile(bill, trace))

# %% [markdown] lang="en"
# They agree line by line, so from here on the ledger may answer.
#
# ## What a recipe stores
#
# FP32 is one recipe of several. They differ in the type in which each bill is kept:
#
# - `fp32`: everything in FP32.
# - `amp-bf16`: FP32 weights under `torch.autocast`, which multiplies matrices in BF16. "Mixed precision" mostly means this.
# - `bf16`: everything in BF16, Adam's state included.
# - `master-bf16`: weights and gradients in BF16, and FP32 copies of the weights (**master weights**) with Adam's state in the optimizer, as large trainings do it.
# - `bf16 + LoRA`: BF16 weights that stay **frozen**; only small adapters are trained.
#
# The table below counts bytes a parameter, then what stays and the peak as multiples of the file. Before you run the cell: which of them halve the bill?

# %% [markdown] lang="zh"
# 逐行都对得上，后面就可以放心让账本来回答。
#
# ## 每种配方各存了什么
#
# FP32 只是其中一种配方。各种配方的区别，在于每笔账用什么类型来存：
#
# - `fp32`：全部 FP32。
# - `amp-bf16`：权重是 FP32，在 `torch.autocast` 之下用 BF16 做矩阵乘。人们说的“混合精度”大多指这个。
# - `bf16`：全部 BF16，连 Adam 的状态也是。
# - `master-bf16`：权重和梯度用 BF16，优化器里另存一份 FP32 的权重（**主权重**）和 Adam 的状态。大规模训练常用这种。
# - `bf16 + LoRA`：BF16 的权重**冻结**不动，只训练很小的适配器。
#
# 下面的表先列每个参数的字节数，再列常驻部分和峰值各是文件的几倍。运行之前先想一想：哪几种能让账单减半？

# %%
from course_lib.cards import find_card
from course_lib.comparisons import comparison_alt_text, side_by_side

recipes = {
    "fp32": fp32,
    "amp-bf16": replace(fp32, precision="amp-bf16"),
    "bf16": replace(fp32, precision="bf16"),
    "master-bf16": replace(fp32, precision="master-bf16"),
    "bf16 + LoRA": replace(fp32, precision="bf16", lora_rank=16),
}
bills = {name: ledger.predict(llama, recipe) for name, recipe in recipes.items()}
file_bytes = 2 * llama.params  # a checkpoint in 16 bit
stays = {name: sum(each.static_bytes.values()) / file_bytes for name, each in bills.items()}

print(f"{'bytes a parameter':18}{'weights':>10}{'gradients':>11}{'optimizer':>11}"
      f"{'stays/file':>12}{'peak/file':>11}{'peak, GB':>10}")
for name, each in bills.items():
    weights, gradients, optimizer = (size / llama.params for size in each.static_bytes.values())
    print(f"{name:18}{weights:10.2f}{gradients:11.2f}{optimizer:11.2f}"
          f"{stays[name]:12.1f}{each.peak_bytes / file_bytes:11.1f}{each.peak_bytes / GB:10.1f}")
judge("C2", {name: 6 <= round(ratio, 1) <= 8 for name, ratio in stays.items()})

cards = [find_card("RTX 3090"), find_card("A100 80GB")]
show(side_by_side(bills, cards), comparison_alt_text(bills))

# %% [markdown] lang="en"
# Autocast halves nothing that stays: weights, gradients and Adam's state are in FP32 as before. Pure BF16 halves everything. Master weights only keep the same 16 bytes elsewhere, and at the step the gradients come in FP32 once more. LoRA leaves the weights and removes what hangs on them. A rule of thumb such as "six to eight times the file" is a statement about a recipe, and the peak lies above it.
#
# And the run of the opening? Its traceback shows a loss scaler, which belongs to FP16 autocast, and that keeps what the second row keeps: 108 GB would have to stay on a card of 80. No batch is small enough for that, and the 86 MiB only came last.
#
# ## Your turn
#
# Now turn the knobs yourself. Tab takes you from one to the next, the left and right arrow keys move it. *Fits* means: even with CUDA's own memory and the allocator's waste. *Tight*: perhaps. It begins with 7B under autocast on an 80 GB card.
#
# - Two controls, moved alone, bring it onto this card. Which? Is the batch one of them?
# - Set the precision to `bf16`. Up to which batch does a larger one cost nothing?
#
# **Task.** Llama-2-7B in `bf16` with LoRA rank 16, checkpointing `block`, 2048 tokens, on an RTX 3090. Which is the largest batch (1, 2, 4, 8, …) that surely *fits*?

# %% [markdown] lang="zh"
# 会一直留着的东西，autocast 一样也没减半：权重、梯度和 Adam 的状态照旧是 FP32。纯 BF16 全都减半。主权重只是把同样的 16 字节换个地方放，更新时梯度还要再来一份 FP32。LoRA 留下权重，拿掉挂在权重上的东西。“文件的 6 到 8 倍”这类经验说法，说的其实是某一种配方，而且峰值还在它之上。
#
# 开头的那次训练呢？它的报错里有损失缩放器，那是 FP16 autocast 才用的，常驻的东西和第二行一样：足足 108 GB，卡只有 80 GB。batch 再小也装不下，86 MiB 不过是最后才轮到的那一笔。
#
# ## 轮到你了
#
# 自己拧一拧旋钮。用 Tab 键换旋钮，用左右方向键拧。“装得下”的意思是：算上 CUDA 自己占的和分配器浪费的，也装得下；“勉强”是也许装得下。一开始摆的是：80 GB 的卡，7B，autocast。
#
# - 只动一个控件，有两个能让它在这块卡上装得下。是哪两个？batch 算不算？
# - 把精度换成 `bf16`：batch 加大到多少为止，一点显存都不多花？
#
# **任务。** Llama-2-7B，`bf16`，LoRA 秩 16，检查点选 `block`，2048 个 token，RTX 3090。肯定“装得下”的最大 batch（1、2、4、8……）是多少？

# %%
from course_lib.widgets import bill_explorer

bill_explorer(model="llama-7b", card="A100 80GB", precision="amp-bf16", batch=1, seq=2048)

# %%
from course_lib.tasks import check, hint

largest_batch = ...
### BEGIN SOLUTION
largest_batch = 4
### END SOLUTION
check("ledger.largest_batch", largest_batch)

# %% [markdown] lang="en"
# ## Say it in an interview
#
# **How much memory does full fine-tuning of a 7B model take?** "With AdamW in FP32, 16 bytes a parameter stay: 4 for the weight, 4 for the gradient, 8 for Adam's two moments. For Llama-2-7B that is 108 GB. The peak is higher: at the optimizer step PyTorch's foreach implementation adds a temporary as large as the weights, 135 GB in all. Activations come on top only as long as they are alive, which is before the step."
#
# **And in mixed precision?** "Under autocast the same, since weights, gradients and optimizer state stay in FP32. In pure BF16 half: 8 bytes a parameter, 10 at the step."
#
# **Is the file's size times six to eight a good estimate?** "It is 8 for what stays in FP32 or under autocast, 4 in pure BF16, 1 with LoRA. I would rather name the recipe, and then the moment of the peak."
#
# ## The next question
#
# If autocast saves none of the bills that stay, what is it for? And if pure BF16 halves everything, why does not everybody train that way? That is `02_mixed_precision`. The sections below go deeper into the ledger; they can wait.

# %% [markdown] lang="zh"
# ## 面试时这样说
#
# **全量微调一个 7B 模型要多少显存？** “用 FP32 加 AdamW，每个参数常驻 16 字节：权重 4、梯度 4、Adam 的两个动量 8，Llama-2-7B 就是 108 GB。峰值还要更高：优化器更新时，PyTorch 的 foreach 实现会多出一份和权重一样大的临时张量，一共 135 GB。激活值只在它活着的时候才占显存，而它活不到更新那一步。”
#
# **换成混合精度呢？** “autocast 下一样多，因为权重、梯度和优化器状态都还是 FP32。纯 BF16 才减半：常驻 8 字节，更新时 10 字节。”
#
# **用文件大小乘 6 到 8 来估，准不准？** “FP32 或 autocast 下常驻部分是 8 倍，纯 BF16 是 4 倍，LoRA 是 1 倍。我会先问是哪种配方，再说峰值在哪个时刻。”
#
# ## 下一个问题
#
# 常驻的几笔账 autocast 一笔也没省，那要它做什么？纯 BF16 什么都减半，为什么大家不都这么训？答案在 `02_mixed_precision`。下面几节把账本讲得更深，以后再看也行。

# %% [markdown] lang="en"
# ## Deeper: the peak moves
#
# Mistral-7B, all weights trained in pure BF16, block checkpointing, sequences of 4096 tokens, one A100 with 80 GB. With a batch of 4, PyTorch counted a peak of 67.46 GiB ([published measurements](https://github.com/foundation-model-stack/fms-acceleration/blob/main/scripts/benchmarks/refs/a100_80gb.csv)). What did it count with a batch of 8?

# %% [markdown] lang="zh"
# ## 深入：峰值会搬家
#
# Mistral-7B，纯 BF16 全量训练，逐层设检查点，序列长 4096，一块 80 GB 的 A100。batch 为 4 时，PyTorch 记下的峰值是 67.46 GiB（[公开的测量数据](https://github.com/foundation-model-stack/fms-acceleration/blob/main/scripts/benchmarks/refs/a100_80gb.csv)）。batch 换成 8，峰值是多少？

# %%
batch_8_gib = ...
### BEGIN SOLUTION
batch_8_gib = 80
### END SOLUTION
predict("ledger.batch_8_gib", batch_8_gib, unit="GiB")

# %%
from course_lib.comparisons import peaks_by_moment

published = {4: 72_434_837_504, 8: 72_435_230_720}  # torch.cuda.max_memory_allocated, by batch
settle("ledger.batch_8_gib", published[8] / GIB, unit="GiB")

mistral = read_model("mistral-7b")
run = Recipe(precision="bf16", checkpoint="block", attention="flash", loss="hf-4.48", seq=4096)
by_batch = {batch: ledger.predict(mistral, replace(run, batch=batch)) for batch in range(1, 17)}
print()
for batch, measured_bytes in published.items():
    predicted_bytes = by_batch[batch].peak_bytes
    print(f"batch {batch}: measured {measured_bytes:,} B = {measured_bytes / GIB:.2f} GiB, "
          f"ledger {predicted_bytes:,} B ({predicted_bytes / measured_bytes - 1:+.5%})")
print(f"difference: measured {published[8] - published[4]:,} B, "
      f"4 more sequences x 4096 tokens x 3 x 8 B = {4 * 4096 * 3 * 8:,} B")
print("the peak leaves the optimizer step at batch",
      min(batch for batch, each in by_batch.items() if each.peak_moment != "optimizer_step"))

show(peaks_by_moment(by_batch, "batch"), comparison_alt_text(by_batch))

# %% [markdown] lang="en"
# Twice the batch, and the peak grew by the batch itself: token, mask and label, three `int64` numbers for each token, to the byte. The activations did double, but they are gone when the optimizer steps, and until batch 9 nothing reaches as high as that step.
#
# Hence two things that sound wrong and are right: as long as the peak is in the optimizer step, **a smaller batch frees nothing, and a larger one costs nothing**. Only where another moment takes over does the batch begin to count.
#
# **Task.** Find a peak and its moment yourself. `events` is a list of pairs: a moment, and by how many bytes memory grew (or shrank, where negative). Return the most bytes that were there at once, and the moment in which that was first so.

# %% [markdown] lang="zh"
# batch 翻倍，峰值只多了 batch 本身：每个 token 的编号、掩码和标签，三个 `int64`，一个字节都不差。激活值确实翻倍了，可是到优化器更新时已经释放，而在 batch 不超过 9 时，没有哪个时刻高得过更新那一步。
#
# 于是有了两条听着不对、其实没错的结论：只要峰值在优化器更新，**调小 batch 一点也省不下，调大 batch 一点也不多花**。直到别的时刻超过它，batch 才开始起作用。
#
# **任务。** 自己找出峰值和它的时刻。`events` 是一串二元组：时刻，以及显存增加了多少字节（负数表示减少）。返回同时存在过的最多字节数，以及第一次达到它的时刻。

# %%
def peak_of(events):
    """The highest running total of the changes, and its moment.

    Args:
        events: pairs such as ("forward", 512); negative where memory is given back.

    Returns:
        (bytes, moment)
    """
    ...
    ### BEGIN SOLUTION
    total = highest = 0
    when = ""
    for moment, change in events:
        total += change
        if total > highest:
            highest, when = total, moment
    return highest, when
    ### END SOLUTION


check("ledger.peak_of", peak_of)

# %% [markdown] lang="en"
# ## Deeper: the logits
#
# A language model ends with one number for each token of the batch and each word of the vocabulary: the **logits**, $\text{tokens} \times V$. Take a small model with a large vocabulary: Qwen2.5-0.5B, $V$ = 151,936, pure BF16, checkpointing, a fused optimizer, 4 sequences of 2048 tokens. What share of the peak, in per cent, do the logits and the loss's copies of them have?

# %% [markdown] lang="zh"
# ## 深入：logits
#
# 语言模型的最后一步，给 batch 里的每个 token、词表里的每个词各算一个数，这就是 **logits**，共 $\text{tokens} \times V$ 个。找一个模型小、词表大的例子：Qwen2.5-0.5B，$V$ = 151,936，纯 BF16，设检查点，优化器用 fused，4 条 2048 个 token 的序列。logits 连同损失函数给它做的各种副本，占峰值的百分之多少？

# %%
logits_percent = ...
### BEGIN SOLUTION
logits_percent = 30
### END SOLUTION
predict("ledger.logits_percent", logits_percent, unit="%")

# %%
qwen = read_model("qwen2.5-0.5b")
run = Recipe(precision="bf16", checkpoint="block", optimizer_impl="fused", batch=4, seq=2048)
qwen_trace = dry_run_config(read_config("qwen2.5-0.5b"), run)

logits = run.tokens * qwen.vocab  # how many
alive = at_peak = 0  # bytes a logit
for event, total in zip(qwen_trace.events, qwen_trace.live_total, strict=True):
    bytes_a_logit = sum(event.change) / logits
    if event.moment in ("forward", "backward") and abs(bytes_a_logit) > 1.5:
        alive += bytes_a_logit
        if total == qwen_trace.peak_bytes:
            at_peak = alive
        print(f"{event.moment:9} {event.operator:28} {bytes_a_logit:+5.1f}   alive {abs(alive):5.1f} bytes a logit")

share = at_peak * logits / qwen_trace.peak_bytes
print(f"\n{at_peak:.0f} B x {logits:,} logits = {at_peak * logits / GIB:.2f} GiB of {qwen_trace.peak_bytes / GIB:.2f} GiB")
settle("ledger.logits_percent", 100 * share, unit="%")
show(timeline(qwen_trace), alt_text(qwen_trace))

# %% [markdown] lang="en"
# The spike in the middle is the loss. The head makes the logits in 16 bit, the loss takes an FP32 copy, the log-softmax of it, then the gradients of both. Checkpointing does not touch this, LoRA does not, a smaller model only makes it stand out more. What helps is a loss that never builds all logits at once; the recipe field `loss` has some of them.
#
# ## Deeper: how activations grow
#
# Double one thing at a time, and measure what the forward pass leaves behind:

# %% [markdown] lang="zh"
# 中间那根尖刺就是损失函数。输出层先算出 16 位的 logits，损失函数把它转成 FP32 的副本，再做 log-softmax，然后是这两步的梯度。检查点管不到它，LoRA 也管不到，模型越小它反而越显眼。管用的是从不把全部 logits 一次摆出来的损失函数，配方里的 `loss` 字段有几种可选。
#
# ## 深入：激活值怎么增长
#
# 每次只把一样东西翻倍，量一量前向传播留下了多少：

# %%
from course_lib.accounts import Moment

base = Recipe(precision="bf16", batch=1, seq=2048)
eager = replace(base, attention="eager")  # builds the whole score matrix, [heads, seq, seq]
runs = {
    "7B, 1 x 2048": (config, base),
    "depth x 2": ({**config, "num_hidden_layers": 2 * llama.layers}, base),
    "batch x 2": (config, replace(base, batch=2)),
    "length x 2": (config, replace(base, seq=4096)),
    "eager": (config, eager),
    "eager, length x 2": (config, replace(eager, seq=4096)),
    "SmolLM2-135M": (read_config("smollm2-135m"), Recipe(precision="fp32", batch=8, seq=1024)),
}
kept, part = {}, {}
for name, (model_config, recipe) in runs.items():
    at_end = dry_run_config(model_config, recipe).end_of(Moment.FORWARD)
    kept[name] = at_end[Account.ACTIVATIONS]
    part[name] = kept[name] / sum(at_end.values())
    print(f"{name:18} {kept[name] / GIB:7.2f} GiB, {part[name]:.0%} of what is alive then")


def is_double(name, of):
    times = kept[name] / kept[of]
    print(f"{name:18} x {times:.2f}")
    return abs(times - 2) < 0.05


print()
linear = {name: is_double(f"{name} x 2", "7B, 1 x 2048") for name in ("depth", "batch", "length")}
half = {f"half ({name})": part[key] >= 0.5 for name, key in (("7B", "7B, 1 x 2048"), ("SmolLM2", "SmolLM2-135M"))}
judge("C10", linear | {"length (eager)": is_double("eager, length x 2", "eager")} | half)

# %%
from course_lib.comparisons import growth, growth_alt_text
from course_lib.ledger import Instant

curves = {}
for attention in ("eager", "flash"):
    recipe = replace(base, attention=attention)
    at_end = {n: ledger.predict(llama, replace(recipe, seq=n)).at(Instant.FORWARD_END) for n in range(512, 8193, 512)}
    curves[attention] = {n: each[Account.ACTIVATIONS] for n, each in at_end.items()}

show(growth(curves, "tokens in the sequence", "activations"), growth_alt_text(curves, "tokens"))

# %% [markdown] lang="en"
# Linear in depth, in batch, and in length as long as attention does not store its score matrix; with `eager` attention a square term takes over. And "often half of the memory" depends on the model: for a 7B at batch 1 it is a quarter, for a small model with a batch of 8 nearly everything. Where activations are most of the bill, lesson 03 applies; where they are not, it cannot help.
#
# ## Deeper: inference
#
# No gradients, no optimizer, nothing kept for a backward pass. Are the weights all that is left? Let the 7B read some prompts, on the meta device again, and keep the keys and values of every token for the words to come: the **KV cache**. If the rest adds at most a tenth, let "alone" pass.

# %% [markdown] lang="zh"
# 随深度、batch 线性增长；只要注意力不存分数矩阵，随长度也是线性的，而 `eager` 注意力会多出平方项。至于“常常占掉一半显存”，要看模型：7B、batch 1 时只占四分之一，小模型、batch 8 时几乎全是它。激活值是大头，第 03 课才用得上；不是大头，用了也没用。
#
# ## 深入：推理
#
# 没有梯度，没有优化器，也不用为反向传播留东西，是不是就只剩权重了？还是在 meta 设备上，让 7B 读几段提示词，并把每个 token 的 K 和 V 留下来给后面生成用，这就是 **KV 缓存**。其余部分加起来不超过权重的十分之一，就算“只需要权重”说得过去。

# %%
import torch

from course_lib.dryrun.hf_model import build_model
from course_lib.plots import waterfall
from course_lib.probe import probe

model = build_model(config, Recipe(precision="bf16"), llama.layers).eval()


def inference_bill(batch, seq):
    """What reading ``batch`` prompts of ``seq`` tokens takes: weights, KV cache, and one layer at work, in bytes."""
    tokens = torch.ones(batch, seq, dtype=torch.long, device="meta")  # [B, T]
    with probe(model) as measured, torch.no_grad():
        _out = model(tokens, use_cache=True, logits_to_keep=1)  # holds the cache, and logits [B, 1, V]
    weights = measured.trace.at_peak[Account.WEIGHTS]
    cache = measured.trace.live_total[-1] - weights  # what is left when the pass is over
    return [("weights", weights), ("KV cache", cache), ("one layer", measured.trace.peak_bytes - weights - cache)]


cases = {}
for batch, seq in ((1, 512), (1, 2048), (8, 2048)):
    (_, weights), (_, cache), (_, layer) = bars = inference_bill(batch, seq)
    cases[f"{batch} x {seq}"] = cache + layer <= 0.1 * weights  # at most a tenth on top
    print(f"{batch} x {seq:4}: weights {weights / GIB:.2f}, KV cache {cache / GIB:.2f}, one layer {layer / GIB:.2f} GiB; "
          f"all logits would add {batch * seq * llama.vocab * 2 / GIB:.2f} GiB")
judge("C17", cases)
show(waterfall(bars, card=find_card("RTX 3090"), total="8 x 2048"), alt_text(bars))

# %% [markdown] lang="en"
# Inference is light because of what it does not keep: of 32 layers' activations only those of the layer at work are there. But the cache grows with every token of every conversation: eight of them with 2048 tokens each, and a 24 GB card is nearly full.
#
# **Task.** Write the cache's size as a function of the model's shape. (`shape.layers`, `shape.heads`, `shape.kv_heads`, `shape.head_dim`; BF16.) It is tested on models with grouped-query attention, too, where several query heads share one head of keys and values.

# %% [markdown] lang="zh"
# 推理之所以轻，是因为它什么都不留：32 层的激活值，同一时刻只有正在算的那一层在。可是每段对话的每个 token 都会让缓存变大：八段对话、每段 2048 个 token，24 GB 的卡就差不多满了。
#
# **任务。** 把 KV 缓存的大小写成模型尺寸的函数（`shape.layers`、`shape.heads`、`shape.kv_heads`、`shape.head_dim`；BF16）。测试里也有用分组查询注意力（GQA）的模型，即几个查询头共用一个 K、V 头。

# %%
def kv_cache_bytes(shape, batch, seq):
    """Bytes of the keys and values of ``batch`` sequences of ``seq`` tokens, in BF16."""
    ...
    ### BEGIN SOLUTION
    numbers_a_token = 2 * shape.layers * shape.kv_heads * shape.head_dim  # K and V
    return numbers_a_token * batch * seq * 2
    ### END SOLUTION


check("ledger.kv_cache_bytes", kv_cache_bytes)

# %% [markdown] lang="en"
# ## Deeper: a bill by hand, to the second decimal
#
# mBART-large on an 11 GB card, trained with fairseq's memory-efficient FP16: weights and gradients in FP16, Adam's two moments in FP32, no other copy. It stopped inside Adam's update ([the report](https://github.com/facebookresearch/fairseq/issues/1936)):
#
# | the report says | |
# |---|---|
# | tried to allocate | 978 MiB |
# | already allocated | 8.73 GiB |
# | total capacity | 10.76 GiB |
#
# The model has 610.85 million parameters. Its largest tensor is the embedding, of shape `[250027, 1024]`, and one FP32 tensor of that shape is what was refused; two more of them were alive as temporaries of the update.
#
# **Task.** Write the bill at that moment, in GiB, account by account. The backward pass is over, so activations no longer count.

# %% [markdown] lang="zh"
# ## 深入：手写一份账单，精确到小数点后两位
#
# mBART-large，一块 11 GB 的卡，用 fairseq 的省显存 FP16 模式：权重和梯度是 FP16，Adam 的两个动量是 FP32，没有别的副本。它停在了 Adam 更新的中途（[原始报告](https://github.com/facebookresearch/fairseq/issues/1936)）：
#
# | 报告里的数字 | |
# |---|---|
# | 想再分配 | 978 MiB |
# | 已分配 | 8.73 GiB |
# | 总容量 | 10.76 GiB |
#
# 模型有 6.1085 亿个参数。最大的张量是嵌入层，形状 `[250027, 1024]`；没要到的正是一个同样形状的 FP32 张量，而更新过程中已经有两个这样的临时张量在了。
#
# **任务。** 按账目写出那一刻的账单，单位 GiB。反向传播已经结束，激活值不用算。

# %%
parameters, embedding = 610.85e6, 250027 * 1024
print(f"one FP32 tensor of the embedding's shape: {4 * embedding / MIB:.1f} MiB")

bill_gib = {"weights": ..., "gradients": ..., "optimizer": ..., "temporary": ...}
### BEGIN SOLUTION
bill_gib = {
    "weights": 2 * parameters / GIB,
    "gradients": 2 * parameters / GIB,
    "optimizer": 2 * 4 * parameters / GIB,
    "temporary": 2 * 4 * embedding / GIB,
}
### END SOLUTION
check("ledger.mbart_bill", bill_gib)

# %% [markdown] lang="en"
# A bill of four lines, and it meets a stranger's error message exactly. It also says what would help: Adam's state is half of it, so an 8-bit optimizer; not a smaller batch, which has no line here.
#
# ## Deeper: does the dry run tell the truth?
#
# So far the dry run was the judge. Judge it by real memory: train the course's small GPT on this machine, put a **probe** around the second step, and reconcile.

# %% [markdown] lang="zh"
# 四行的账单，和陌生人的报错分毫不差。它还指明了办法：Adam 的状态占了一半，所以该换 8-bit 优化器；调小 batch 没用，账单里根本没有它的位置。
#
# ## 深入：空跑说的是真话吗
#
# 到现在为止，一直是空跑在当裁判。现在用真实的内存来审它：在这台机器上训练课程自带的小 GPT，给第二步套上**探针**，然后对账。

# %%
from course_lib.dryrun import dry_run
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.training import make_optimizer, train_step

small = Recipe(precision="fp32", batch=4, seq=64)


def loss_of(model, tokens):
    return next_token_loss(model(tokens), tokens)  # targets do not matter for memory


def get_ready(device):
    """A small GPT on ``device``, its optimizer, and one training step as a function."""
    with torch.device(device):
        model = GPT(GPTConfig(layers=4, width=128, vocab=256, block_size=64))
        tokens = torch.ones(small.batch, small.seq, dtype=torch.long)  # [B, T]
    optimizer = make_optimizer(model, small)
    return model, optimizer, lambda: train_step(model, optimizer, [tokens], loss_of)


device = "cuda" if torch.cuda.is_available() else "cpu"
gpt, optimizer, step = get_ready("meta")
predicted = dry_run(gpt, step, optimizer, imitate=device)

gpt, optimizer, step = get_ready(device)
step()  # Adam's state comes into being here
with probe(gpt, optimizer) as measured:
    step()
print(f"peak by {'the card' if measured.cuda else 'the probe'}: {measured.peak_bytes / MIB:.3f} MiB")
reconcile(predicted, measured.trace)

# %% [markdown] lang="en"
# Predicted and measured agree, account by account.
#
# ## Deeper: what a bill costs, and when it fails
#
# It costs a minute. But it answers one question only: how many bytes of *tensors* are alive at the worst moment of a *usual* step. It fails you where that is not the question:
#
# - **The card has more in use than tensors**: CUDA's context, and what the allocator holds back. The same published runs as above, by PyTorch's counter and by `nvidia-smi`:

# %% [markdown] lang="zh"
# 预测和实测，每笔账都对得上。
#
# ## 深入：账单的代价，以及它什么时候不管用
#
# 写一份账单只要一分钟，但它只回答一个问题：在*平常*的一步里，最紧张的那一刻有多少字节的*张量*。问的不是这个，它就帮不上忙：
#
# - **卡上占着的不止张量**：还有 CUDA 的上下文，以及分配器攥在手里的部分。还是上面那两次公开的运行，一个是 PyTorch 的计数，一个是 `nvidia-smi`：

# %%
from course_lib.device import device_range

nvidia_smi = {4: 77_256 * MIB, 8: 72_988 * MIB}
resident_bytes = 2 * mistral.params + 4 * mistral.params  # weights and Adam's state, pure BF16
for batch, allocated in published.items():
    low, high = device_range(by_batch[batch].peak_bytes, resident_bytes)
    print(f"batch {batch}: allocated {allocated / GIB:.1f}, nvidia-smi {nvidia_smi[batch] / GIB:.1f} GiB "
          f"({nvidia_smi[batch] / allocated - 1:+.0%}); the course's range {low / GIB:.1f} to {high / GIB:.1f} GiB")

# %% [markdown] lang="en"
# The same tensors, and 4 GiB between two runs: *allocated* is a figure, *device used* a range. That is why a verdict has three values.
#
# - **The step is not usual**: the first has no Adam state until its end, so it proves little; one that draws the longest sample of the data set may come after thousands that fit. Write the bill for the longest.
# - **It is not a step**: loading, evaluating and saving have peaks of their own (lesson 06).
# - **It is not one plain card**: several cards, offloading, `torch.compile`, another library's loss. The ledger refuses what it does not know; the dry run takes any eager PyTorch code, on one card.
#
# You have seen where the bytes are. From here on the course takes them away, one bill at a time: `02_mixed_precision`.

# %% [markdown] lang="zh"
# 张量一样多，两次运行却差了 4 GiB：*已分配*是一个数，*设备占用*是一个范围。所以结论有三种，而不是两种。
#
# - **这一步不平常**：第一步直到最后才有 Adam 的状态，跑通了也说明不了什么；抽到全数据集最长样本的那一步，可能在几千步之后才来。账单要按最长的样本写。
# - **根本不是训练步**：加载、评估、保存各有各的峰值（第 06 课）。
# - **不是一块普通的卡**：多卡、卸载到内存、`torch.compile`、别的库的损失函数。账本遇到不懂的会直说不支持；空跑能跑任何单卡的 eager 代码。
#
# 字节在哪里，你已经看清了。接下来这门课要一笔一笔地把它们拿走：`02_mixed_precision`。
