# %% [markdown] lang="en"
# # 07 · The interview room
#
# *In a hurry? Run the next cell and the one after it: you get a field that finds any of over fifty questions. With time: the core takes 20 minutes, and then ten a day until the interview. Before it: `01_ledger`; the rest as far as you got.*
#
# ## Every remedy in the book, and out of memory
#
# Somebody trains LLaMA-13B on one A100 with 80 GB, and has done what everybody advises ([the report](https://github.com/lm-sys/FastChat/issues/367)):
#
# | the run | |
# |---|---|
# | precision | BF16, mixed |
# | batch | 1 |
# | gradient accumulation | 32 |
# | gradient checkpointing | on |
# | FSDP | on, over one card |
# | result | out of memory |
#
# That is an interview question as it stands: *what do you suggest?* A smaller batch, more accumulation, checkpointing: a candidate who recites remedies has just been told that all of them are in place. **What answer is worth giving, and how do you get it out in a minute?**

# %% [markdown] lang="zh"
# # 07 · 面试间
#
# *赶时间？运行下面两个单元，会出现一个搜索框，五十多道题随便查。时间够：主线 20 分钟，之后每天十分钟，练到面试那天。先学 `01_ledger`，其余各课学到哪里算哪里。*
#
# ## 该用的办法都用了，还是爆显存
#
# 有人在一块 80 GB 的 A100 上训练 LLaMA-13B，大家常劝的都照做了（[原始报告](https://github.com/lm-sys/FastChat/issues/367)）：
#
# | 那次训练 | |
# |---|---|
# | 精度 | BF16 混合精度 |
# | batch | 1 |
# | 梯度累积 | 32 |
# | 梯度检查点 | 开 |
# | FSDP | 开，只有一张卡 |
# | 结果 | 显存不足 |
#
# 原封不动就是一道面试题：*你建议怎么办？* 调小 batch、多累积、开检查点——张口就背办法的人，等于被当面告知：这些全都用上了。**什么样的回答才有分量？怎么在一分钟里说出来？**

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Find an answer
#
# Type some words, such as `logits`, `7B 24GB` or `divide by N`. You get what to say aloud, what to add if there is time, the question that usually follows, and what not to say. The field left empty lists all questions by topic. Every figure is computed as you look, and unfolds to how.

# %% [markdown] lang="zh"
# ## 查一个答案
#
# 输入几个词，比如 `logits`、`单卡 24GB`、`忘了除`。你会看到：张口该说什么，有时间再补什么，对方多半会追问什么，以及什么不能说。搜索框空着，就按主题列出全部题目。每个数都是当场算的，点开能看到怎么算。

# %%
from course_lib.interview.answers import finder

finder()

# %% [markdown] lang="en"
# ## Predict
#
# 1. The run above keeps FP32 weights under BF16 autocast, with AdamW. How many GB have to **stay** on the card, activations aside?
# 2. Below are five answers as they are found in published collections of interview questions. How many of them are right?

# %% [markdown] lang="zh"
# ## 预测
#
# 1. 开头那次训练是 BF16 autocast，权重 FP32，优化器 AdamW。不算激活值，有多少 GB 必须**常驻**在卡上？
# 2. 下面有五个答案，都是公开的面试题集里常见的说法。其中几个是对的？

# %%
from course_lib.journal import predict, settle

stays_gb = ...  # GB that stay
right_answers = ...  # of five
### BEGIN SOLUTION
stays_gb = 100
right_answers = 2
### END SOLUTION
predict("interview.stays_gb", stays_gb, unit="GB")
predict("interview.right_answers", right_answers, unit="of 5")

# %% [markdown] lang="en"
# ## Measure: what each remedy takes off
#
# Take the remedies off that run one by one, and look at what stays and at the peak:

# %% [markdown] lang="zh"
# ## 实测：每种办法拿掉了什么
#
# 把那次训练里的办法一样一样撤掉，看常驻部分和峰值各变多少：

# %%
from dataclasses import replace

from course_lib import ledger
from course_lib.cards import find_card
from course_lib.hf_config import read_model
from course_lib.recipe import Recipe
from course_lib.units import GB, GIB

llama13, a100 = read_model("llama-13b"), find_card("A100 80GB")
run = Recipe(precision="amp-bf16", batch=1, seq=2048, accum=32, checkpoint="block")
versions = {
    "as reported": run,
    "no checkpointing": replace(run, checkpoint="none"),
    "no accumulation": replace(run, accum=1),
    "batch 4": replace(run, batch=4, accum=8),
    "pure BF16": replace(run, precision="bf16"),
    "LoRA": replace(run, precision="bf16", lora_rank=16),
}
print(f"{'13B, GB':18}{'stays':>8}{'peak':>8}   in")
for name, recipe in versions.items():
    bill = ledger.predict(llama13, recipe)
    stays = sum(bill.static_bytes.values())
    print(f"{name:18}{stays / GB:8.1f}{bill.peak_bytes / GB:8.1f}   {bill.peak_moment}")
print(f"{a100.name} hands out {a100.usable_bytes / GB:.1f} GB\n")
settle("interview.stays_gb", 16 * llama13.params / GB, unit="GB")

# %% [markdown] lang="en"
# Batch, accumulation and checkpointing do not change the peak by a tenth of a GB: it is in the optimizer step, and they work on activations. FSDP over one card shares out nothing. So the answer is not a fourth remedy, it is a sentence: *"208 GB have to stay, 16 bytes a parameter; nothing that works on activations can help. LoRA takes gradients and state away: 28 GB."*
#
# ## Five published answers
#
# Now five sentences that sound as good as any. Each is set against a cell.
#
# 1. "AMP halves memory at no cost."
# 2. "Checkpointing every block brings activation memory down to O(√n)."
# 3. "LoRA fine-tuning of a 7B needs 14 GB."
# 4. "Gradients and optimizer state are the biggest account, so accumulate gradients."
# 5. "Full fine-tuning takes four times the model's file: weights, gradients and two moments."

# %% [markdown] lang="zh"
# batch、累积、检查点都撤掉，峰值也变不了 0.1 GB：它在优化器更新，而这几样管的是激活值。FSDP 只有一张卡，什么也没分。所以该给的不是第四种办法，而是一句话：*“每个参数 16 字节，208 GB 必须常驻，凡是针对激活值的办法都没用。LoRA 拿掉梯度和状态，剩 28 GB。”*
#
# ## 五个流传的答案
#
# 再看五句听上去同样在理的话，每句都用一个单元来对质。
#
# 1. “AMP 显存减半，没有代价。”
# 2. “每个 block 设一个检查点，激活显存就降到 O(√n)。”
# 3. “7B 做 LoRA 微调，14 GB 就够。”
# 4. “梯度和优化器状态是最大头，所以要做梯度累积。”
# 5. “全量微调是模型文件的四倍：权重、梯度、两个动量。”

# %%
# 1. AMP halves memory at no cost.
from course_lib.floats import FP16

llama, stood = read_model("llama-7b"), {}
fp32 = Recipe(precision="fp32", optimizer_impl="fused", seq=2048)
for precision in ("fp32", "amp-fp16", "bf16"):
    bill = ledger.predict(llama, replace(fp32, precision=precision))
    print(f"7B, {precision:9} stays {sum(bill.static_bytes.values()) / GB:6.1f} GB, peak {bill.peak_bytes / GB:6.1f} GB")
    stood[precision] = bill.peak_bytes
print(f"a gradient of 1e-8 in FP16, without loss scaling: {FP16.stored(1e-8)}")
right = {"AMP halves": stood["amp-fp16"] <= 0.5 * stood["fp32"]}

# %%
# 2. Checkpointing every block is O(sqrt(n)).
from course_lib.accounts import ACCOUNTS, Account, Moment
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config

config, lora = read_config("llama-7b"), Recipe(precision="bf16", lora_rank=16, seq=2048)
left = {}
for layers in (8, 128):  # measured on the meta device, transformers' own code
    trace = dry_run_config({**config, "num_hidden_layers": layers}, replace(lora, checkpoint="block"))
    left[layers] = trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS] - 4 * 2048 * llama.vocab  # log-probabilities aside
    print(f"{layers:4} blocks: {left[layers] / GB:.3f} GB left by the forward pass")
growth = left[128] / left[8]
print(f"16 times the depth: x {growth:.1f}; sqrt(n) would be x 4")
print(f"each further block: {(left[128] - left[8]) / 120:,.0f} B; its input, 2048 x {llama.hidden} x 2 B = "
      f"{2048 * llama.hidden * 2:,} B")
right["O(sqrt(n))"] = growth < 5

# %%
# 3. LoRA fine-tuning of a 7B needs 14 GB.
peaks = {}
for checkpoint in ("none", "block"):
    trace = dry_run_config(config, replace(lora, checkpoint=checkpoint))
    peaks[checkpoint] = trace.peak_bytes
    at_peak = trace.at_peak
    print(f"1 x 2048 tokens, checkpoint={checkpoint:6} peak {trace.peak_bytes / GB:.1f} GB, of which weights "
          f"{at_peak[Account.WEIGHTS] / GB:.1f}, activations {at_peak[Account.ACTIVATIONS] / GB:.1f}")
print(f"an RTX 3090 hands out {find_card('RTX 3090').usable_bytes / GB:.1f} GB")
right["14 GB"] = peaks["none"] <= 14 * GB

# %%
# 4. Gradients and optimizer state are the biggest account, so accumulate.
print(f"{'7B, pure BF16, GB':20}" + "".join(f"{account:>13}" for account in ACCOUNTS) + f"{'peak':>8}")
shrunk = []
for accum in (1, 8, 64):
    bill = ledger.predict(llama, Recipe(precision="bf16", seq=2048, accum=accum))
    shrunk.append(sum(bill.at_peak[each] for each in (Account.GRADIENTS, Account.OPTIMIZER)))
    row = "".join(f"{bill.at_peak[account] / GB:13.2f}" for account in ACCOUNTS)
    print(f"{f'{accum} x 1 sequence':20}{row}{bill.peak_bytes / GB:8.1f}")
right["accumulate"] = shrunk[-1] < shrunk[0]

# %%
# 5. Full fine-tuning takes four times the file.
gpt2, within = read_model("gpt2"), []
print(f"GPT-2 in FP32: file {4 * gpt2.params / GB:.2f} GB, four times that {16 * gpt2.params / GB:.2f} GB")
for batch in (1, 8, 32):
    peak = ledger.predict(gpt2, Recipe(precision="fp32", batch=batch, seq=1024)).peak_bytes
    print(f"batch {batch:2} x 1024 tokens: {peak / GB:5.1f} GB, {peak / (4 * gpt2.params):5.1f} times the file")
    within.append(abs(peak / (16 * gpt2.params) - 1) < 0.2)
right["four times the file"] = all(within)

print()
settle("interview.right_answers", sum(right.values()), unit="of 5")

# %% [markdown] lang="en"
# None. Each of them forgets one of three things: **which recipe** (1, 2), **which account** (3, 4), **which moment, and with which batch** (5). An interviewer who knows the field asks for exactly these. So an answer that names recipe, account and moment is hard to shake, even where a figure is off.
#
# ## The drill
#
# Look at the question, say your answer *aloud*, then show it and grade yourself. What was weak comes back in minutes, what was easy in days; when, is FSRS's business, the scheduler that Anki uses, too. Set the day of your interview: new questions are spread over the days that are left, all come back once on the day before, and nothing after that.
#
# Your grades are kept where your predictions are. Without a mouse: Tab goes from button to button, Space presses.

# %% [markdown] lang="zh"
# 一个也没有。每句都漏了三样中的一样：**哪种配方**（1、2），**哪笔账**（3、4），**哪个时刻、多大的 batch**（5）。懂行的面试官追问的正是这三样。所以回答时把配方、账目、时刻都点到，就算某个数记偏了，也站得住。
#
# ## 每天练几题
#
# 看题，*出声*回答，再看答案，给自己打分。答得差的几分钟后再来，答得好的隔几天再来；什么时候来由 FSRS 决定，Anki 用的也是这个算法。填上面试日期：没见过的题会摊到剩下的日子里，面试前一天全部再过一遍，之后就不再出现。
#
# 打的分和你的预测存在同一个地方。不用鼠标也行：Tab 键换按钮，空格键按下。

# %%
from course_lib.interview.room import drill

drill()

# %% [markdown] lang="en"
# ## A mock interview
#
# Ten questions across the topics, 90 seconds each. The score is yours: *well* and *at once* count whole, *with gaps* half, and what took longer counts half at most. Do not stop to look things up; the list at the end says what to go over. The grades count in the drill as well.

# %% [markdown] lang="zh"
# ## 模拟面试
#
# 十道题，覆盖各个主题，每题 90 秒。分数由你自己给：“还行”和“脱口而出”算满分，“有漏洞”算一半，超时的最多一半。中途别停下来查，结束时会列出该回头看的题。这里打的分，在上面的练习里同样算数。

# %%
from course_lib.interview.room import mock

mock()

# %% [markdown] lang="en"
# ## Say it in an interview
#
# **You do not remember the figure.** "Let me derive it. Which recipe? In pure BF16 with AdamW a parameter takes 2 for the weight, 2 for the gradient, 4 for the moments: 8 bytes, so 56 GB for seven billion. At the step foreach adds another 2."
#
# **They insist on something wrong.** "It may be so under a condition. With √n segments it is O(√n); with one checkpoint per block, which the one-liner gives, it is linear. I measured 8 and 128 blocks: thirteen times as much, where √n would give four."
#
# **They ask for remedies.** "First the moment of the peak, then the account that owns it. If it is the optimizer step, no batch size helps."
#
# ## The next question
#
# It is yours. Take a run of your own, write its bill before you start it, and see how far off you are. `course ledger` takes your model's `config.json`. The sections below go deeper: three estimates to practise, several cards, memory that grows, the deck for your phone, and how good your guesses have become.

# %% [markdown] lang="zh"
# ## 面试时这样说
#
# **数字想不起来了。** “我现场推一下。哪种配方？纯 BF16 加 AdamW，每个参数权重 2、梯度 2、动量 4，一共 8 字节，70 亿参数就是 56 GB。更新那一步，foreach 还要再加 2。”
#
# **对方坚持一个错的说法。** “有条件的话可以这么说。分成 √n 段是 O(√n)；一行代码开启的是每个 block 一个检查点，那是线性的。8 层和 128 层我量过，差十三倍，√n 的话只该差四倍。”
#
# **对方问怎么办。** “先看峰值在哪个时刻，再看是哪笔账。要是在优化器更新，batch 多小都没用。”
#
# ## 下一个问题
#
# 该由你来出了。拿一个自己的训练，开跑之前先写账单，看看差多少。`course ledger` 认得你模型的 `config.json`。下面几节更深一些：三道心算题、多张卡、越涨越多的显存、手机上的卡片，以及你的预测准了多少。

# %% [markdown] lang="en"
# ## Deeper: on the back of an envelope
#
# **Task.** What stays, in GB, for a model of so many billion parameters, with AdamW: `"fp32"`, `"amp-bf16"`, `"bf16"` or `"lora"` (rank 16, on BF16 weights)? Write the function that you would compute in your head; five per cent off is fine.

# %% [markdown] lang="zh"
# ## 深入：信封背面的算术
#
# **任务。** 给定参数量（以十亿计），用 AdamW，常驻多少 GB？配方是 `"fp32"`、`"amp-bf16"`、`"bf16"` 或 `"lora"`（秩 16，底座 BF16）。把你心算的办法写成函数，误差 5% 以内就行。

# %%
from course_lib.tasks import check, hint


def stays_gb(billions, recipe):
    """GB of weights, gradients and optimizer state."""
    ...
    ### BEGIN SOLUTION
    bytes_each = {"fp32": 16, "amp-bf16": 16, "bf16": 8, "lora": 2}
    return billions * bytes_each[recipe]
    ### END SOLUTION


check("interview.stays_gb", stays_gb)

# %% [markdown] lang="en"
# **Task.** Who owns the peak? Name the largest account: `"weights"`, `"gradients"`, `"optimizer"`, `"activations"` or `"temporary"`.
#
# - A: Llama-2-7B, pure BF16, all weights trained, 1 × 2048 tokens
# - B: GPT-2, FP32, 32 × 1024 tokens
# - C: Qwen2.5-0.5B, pure BF16, fused optimizer, checkpointing, 4 × 2048 tokens
# - D: Llama-2-7B, LoRA, checkpointing, 1 × 2048 tokens

# %% [markdown] lang="zh"
# **任务。** 峰值归谁？写出最大的那笔账：`"weights"`、`"gradients"`、`"optimizer"`、`"activations"` 还是 `"temporary"`。
#
# - A：Llama-2-7B，纯 BF16，全量训练，1 × 2048 个 token
# - B：GPT-2，FP32，32 × 1024 个 token
# - C：Qwen2.5-0.5B，纯 BF16，fused 优化器，检查点，4 × 2048 个 token
# - D：Llama-2-7B，LoRA，检查点，1 × 2048 个 token

# %%
owner = {"A": ..., "B": ..., "C": ..., "D": ...}
### BEGIN SOLUTION
owner = {"A": "optimizer", "B": "activations", "C": "temporary", "D": "weights"}
### END SOLUTION
check("interview.owner_of_the_peak", owner)

# %% [markdown] lang="en"
# ## Deeper: several cards
#
# Data parallelism copies everything to every card. **ZeRO** and **FSDP** share out what stays: stage 1 the optimizer's 12 bytes a parameter (FP32 copy and two moments), stage 2 the 2 of the gradients as well, stage 3 the 2 of the weights, too ([Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054)). Activations are not shared out: each card works on sequences of its own.
#
# **Task.** Write it: bytes on each card, `stage` from 0 (nothing is shared out) to 3.

# %% [markdown] lang="zh"
# ## 深入：多张卡
#
# 普通的数据并行，每张卡都有一整份。**ZeRO** 和 **FSDP** 把常驻的部分分摊开：第 1 级分优化器的 12 字节（FP32 副本加两个动量），第 2 级再分梯度的 2 字节，第 3 级连权重的 2 字节也分（[Rajbhandari 等，2020](https://arxiv.org/abs/1910.02054)）。激活值不分：每张卡各算各的序列。
#
# **任务。** 写出来：每张卡上多少字节，`stage` 从 0（什么都不分）到 3。

# %%
def zero_bytes(params, stage, cards):
    """Bytes of weights, gradients and optimizer state on each card."""
    ...
    ### BEGIN SOLUTION
    weights, gradients, optimizer = 2 * params, 2 * params, 12 * params
    if stage >= 1:
        optimizer /= cards
    if stage >= 2:
        gradients /= cards
    if stage >= 3:
        weights /= cards
    return weights + gradients + optimizer
    ### END SOLUTION


check("interview.zero_bytes", zero_bytes)

# %%
from course_lib.interview.figures import zero

print(f"{'GB a card':28}" + "".join(f"{f'stage {stage}':>10}" for stage in range(4)))
for name, params, cards in (("7.5B on 64, as published", 7.5e9, 64), ("Llama-2-7B on 8", llama.params, 8)):
    print(f"{name:28}" + "".join(f"{zero(params, stage, cards) / GB:10.1f}" for stage in range(4)))
print(f"gathered for its turn: one block of Llama-2-7B, {2 * llama.block_params / GB:.2f} GB in BF16")
print(f"all blocks wrapped as one: {2 * llama.layers * llama.block_params / GB:.1f} GB")

# %% [markdown] lang="en"
# Two things that are asked next. To compute a block its weights must be whole, so stage 3 gathers them before and drops them after; what is wrapped as one unit is gathered as one, and a model wrapped whole gains nothing. And on *one* card stage 3 is stage 0, as the run of the opening found out.
#
# ## Deeper: memory that grows
#
# "`total_loss += loss` keeps the graph, so memory grows": is it so? Run six steps in each of several ways, and look at how much more is alive after each step than after the one before:

# %% [markdown] lang="zh"
# 接下来会问两点。要算一个 block，它的权重必须完整，所以第 3 级是算之前收集、算完丢掉；包成一个单元的会一起收集，整个模型包成一个，等于白分。还有，只有*一张*卡时，第 3 级就是第 0 级，开头那次训练就是这样。
#
# ## 深入：越涨越多的显存
#
# “`total_loss += loss` 会留住计算图，所以显存一直涨”，真的吗？用几种写法各跑六步，看每步结束时比上一步多活着多少：

# %%
import torch

from course_lib.meter import Meter
from course_lib.models import GPT, GPTConfig, next_token_loss

KEEP = {
    "loss.item()": lambda loss, logits: loss.item(),
    "loss": lambda loss, logits: loss,
    "logits.detach()": lambda loss, logits: logits.detach(),
}


def growth_kib(keep, backward, gradients=True):
    """KiB more alive after the sixth step than after the fifth, where each step appends to a list."""
    model = GPT(GPTConfig(layers=2, width=32, vocab=64, block_size=32))
    optimizer, tokens = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(8, 32, dtype=torch.long)  # [B, T]
    kept, alive = [], []
    with Meter("cpu", model, optimizer) as meter, torch.set_grad_enabled(gradients):
        for _step in range(6):
            logits = model(tokens)  # [B, T, V]
            loss = next_token_loss(logits, tokens)
            if backward:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            kept.append(keep(loss, logits))
            del logits, loss
            alive.append(sum(meter.live.values()))
    return (alive[5] - alive[4]) / 1024


print(f"{'KiB a step, kept:':18}{'training':>12}{'validation':>14}{'with no_grad':>14}")
for name, keep in KEEP.items():
    row = growth_kib(keep, True), growth_kib(keep, False), growth_kib(keep, False, gradients=False)
    print(f"{name:18}{row[0]:12.1f}{row[1]:14.1f}{row[2]:14.1f}")

# %% [markdown] lang="en"
# In training a kept loss costs half a KiB a step, one block of the allocator: `backward()` has freed what the graph had saved. In validation no backward pass comes, so one kept loss holds *all* activations of its step; with `no_grad` it is half a KiB again. And kept logits cost what they weigh, detached or not. So the usual advice is right about `no_grad` and `.item()`, and wrong about the reason in a training loop.
#
# ## Deeper: the deck for your phone
#
# The same questions as an [Anki](https://apps.ankiweb.net) deck, in either language:
#
# ```
# course anki --lang en --out interview.apkg
# ```
#
# Every note keeps its identity: import a newer edition, and the texts are updated while what you have learned stays. Anki schedules by itself; grades given there do not come back here.
#
# ## Deeper: how good have your guesses become?
#
# All through the course you guessed before you measured. Here is every guess in number, in the order in which you made it. Within the grey band you were right to a tenth; hollow points were guessed afterwards.

# %% [markdown] lang="zh"
# 训练循环里，留住一个 loss 每步只多半个 KiB，也就是分配器的一个最小块：图里存的东西，`backward()` 已经释放了。验证时没有反向，留住一个 loss 就留住了那一步的*全部*激活值；写上 `no_grad`，又回到半个 KiB。留住 logits，就按 logits 的大小算，detach 不 detach 都一样。可见流行的建议里，`no_grad` 和 `.item()` 没说错，对训练循环给的理由却是错的。
#
# ## 深入：手机上的卡片
#
# 同样的题目，做成 [Anki](https://apps.ankiweb.net) 卡片，两种语言任选：
#
# ```
# course anki --lang zh --out interview.apkg
# ```
#
# 每张卡的身份不变：以后导入新版，文字会更新，学习进度还在。Anki 有自己的安排，在那边打的分不会回到这里。
#
# ## 深入：你的预测准了多少？
#
# 整门课里，你都是先猜后量。这里按先后列出你猜过的每一个数。落在灰带里，误差不到一成；空心的点是量完之后才猜的。

# %%
from course_lib.figures import show
from course_lib.journal import calibration, calibration_text

show(calibration(), calibration_text())
