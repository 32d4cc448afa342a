# %% [markdown] lang="en"
# # 00 · Start here
#
# *10 minutes. Afterwards you know what this course does, what your machine can do in it, and which way through it is yours.*
#
# ## Half a gigabyte does not fit into six
#
# Somebody fine-tunes the smallest GPT-2: 124 million parameters, a file of half a gigabyte. The card has 6 GB. The batch is one sequence of 1024 tokens, and gradients are accumulated over 1024 of them. PyTorch stops: *CUDA out of memory* ([the report](https://github.com/huggingface/transformers/issues/1819)).
#
# The usual advice is a smaller batch, or more accumulation. The batch is already one, and nobody accumulates more than this. So **where are the bytes, and what would really help?** That is what you will be able to say here, before a run and without the card.
#
# First run the next cell (click into it, then Shift+Enter). It says what this machine can do, and on Colab it installs the course; you need not read its code.

# %% [markdown] lang="zh"
# # 00 · 从这里开始
#
# *10 分钟。读完你会知道：这门课做什么，你的机器在课上能做什么，以及哪条路线适合你。*
#
# ## 半个 GB 的模型，6 GB 的卡装不下
#
# 有人微调最小的 GPT-2：1.24 亿参数，模型文件只有半个 GB。显卡有 6 GB，batch 是一条 1024 个 token 的序列，梯度累积 1024 次。结果 PyTorch 停了下来，报 *CUDA out of memory*（[原始报告](https://github.com/huggingface/transformers/issues/1819)）。
#
# 最常见的建议是“调小 batch”或“多累积几步”。可 batch 已经是 1，累积也已经到了 1024。那么，**显存到底花在哪里，什么办法才真有用？** 学完这门课，不用开跑、不用那块卡，你也答得上来。
#
# 先运行下面这个单元（点进去，按 Shift+Enter）：它会说明这台机器能做什么；在 Colab 上还会装好课程。里面的代码不必读。

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# Everything in this course goes in three steps: **predict** a figure, **measure** it, **reconcile** the two. The guess comes first, because a figure that you have only read is gone by tomorrow, and one that surprised you stays.
#
# So guess: how many GiB did this training step of half a gigabyte of weights need when it failed? Write a number in place of the dots and run the cell. A wrong guess costs nothing. It is kept, and at the end of the course you see how your guesses have changed.

# %% [markdown] lang="zh"
# ## 预测
#
# 这门课里的每件事都分三步：先**预测**一个数，再**实测**，最后**对账**。之所以先猜，是因为只读过的数字明天就忘了，让你意外过的数字才留得住。
#
# 那就猜一猜：权重只有半个 GB，出错的那一刻，这一步训练一共要用多少 GiB？把省略号换成你的数，运行这个单元。猜错没有任何损失：它会被记下来，课程结束时，你能看到自己有没有越猜越准。

# %%
from course_lib.journal import predict, settle

guess_gib = ...  # your guess, in GiB
### BEGIN SOLUTION
guess_gib = 2.0  # four copies of the weights: parameters, gradients, Adam's two moments
### END SOLUTION
predict("start.gpt2_step", guess_gib, unit="GiB")

# %% [markdown] lang="en"
# ## Measure
#
# Here the card has already measured. This is what the message says:
#
# | the message says | |
# |---|---|
# | tried to allocate | 198 MiB |
# | total capacity | 5.93 GiB |
# | already allocated | 4.64 GiB |
# | free | 54.94 MiB |
# | cached | 233.05 MiB |
#
# What the step needed is what was allocated, and the one tensor more that was refused. What it had is what was allocated, free and cached; the rest of the card was held by CUDA itself and other programs.

# %% [markdown] lang="zh"
# ## 实测
#
# 这一次显卡已经替我们量好了。报错里写着：
#
# | 报错里的数字 | |
# |---|---|
# | 想再分配 | 198 MiB |
# | 总容量 | 5.93 GiB |
# | 已分配 | 4.64 GiB |
# | 空闲 | 54.94 MiB |
# | 缓存 | 233.05 MiB |
#
# 这一步需要的，是已经分配的，加上没要到的那一块。它能用的，是已分配、空闲和缓存三项之和；显卡其余的部分，被 CUDA 自己和别的程序占着。

# %%
from course_lib.units import GIB, MIB, format_bytes

needed_bytes = 4.64 * GIB + 198 * MIB
settle("start.gpt2_step", needed_bytes / GIB, "GiB")

available_bytes = 4.64 * GIB + (54.94 + 233.05) * MIB
elsewhere_bytes = 5.93 * GIB - available_bytes
print(f"needed {format_bytes(needed_bytes)}, available {format_bytes(available_bytes)}")
print(f"elsewhere {format_bytes(elsewhere_bytes)}")

# %% [markdown] lang="en"
# ## Reconcile
#
# The step needed a little less than there was, and still it failed: the tensor wants one piece of 198 MiB, while what is cached lies in smaller ones. A run this close to the edge is a matter of luck. What helps is a smaller bill, so let us see what is on it.
#
# The **memory ledger** writes the bill of a training step in closed form, from nothing but the model's sizes and the way it is trained. It needs no card and no torch, and answers in milliseconds.

# %% [markdown] lang="zh"
# ## 对账
#
# 需要的比能用的还少一点，却照样失败：那个张量要一整块 198 MiB，而缓存是零散的小块。贴着上限跑，成不成全看运气。真有用的是让账单变小，那就看看账单上都有什么。
#
# **显存账本**只凭模型的尺寸和训练方式，用公式写出一步训练的账单。不需要显卡，也不需要 torch，几毫秒就有答案。

# %%
from course_lib import ledger
from course_lib.figures import show
from course_lib.hf_config import read_model
from course_lib.plots import alt_text, bill_waterfall
from course_lib.recipe import Recipe

gpt2 = read_model("gpt2")  # sizes only: layers, widths, vocabulary
recipe = Recipe(
    precision="fp32", optimizer_impl="forloop", attention="eager", batch=1, seq=1024, accum=1024
)
bill = ledger.predict(gpt2, recipe)

difference = bill.peak_bytes / needed_bytes - 1
print(f"ledger {format_bytes(bill.peak_bytes)}, report {format_bytes(needed_bytes)}")
print(f"difference {difference:+.1%}")
show(bill_waterfall(bill), alt_text(bill))

# %% [markdown] lang="en"
# Two per cent apart, although the run is years old and its library another one. Weights, gradients and Adam's state are the smaller part of the bill. The larger one is what the forward pass leaves behind for the backward pass: the **activations**.
#
# Even the 198 MiB have a name. A language model scores each word of its vocabulary at each position; these scores are called *logits*:

# %% [markdown] lang="zh"
# 相差 2%，尽管那是多年前的一次运行，用的库也不同。权重、梯度和 Adam 的状态只占账单的一小半，大头是前向传播留给反向传播用的东西：**激活值**。
#
# 就连那 198 MiB 也叫得出名字。语言模型在每个位置上给词表里的每个词打一个分，这些分数叫 *logits*：

# %%
tokens, vocabulary, fp32_bytes = 1024, 50257, 4
logits_bytes = tokens * vocabulary * fp32_bytes
step_bytes = 2 * MIB  # PyTorch asks CUDA for more than 10 MiB in steps of this size
asked_bytes = -(-logits_bytes // step_bytes) * step_bytes
print(f"logits {format_bytes(logits_bytes, 'MiB')}, asked for {format_bytes(asked_bytes, 'MiB')}")

# %% [markdown] lang="en"
# Now the question can be answered. What would have helped? Change the recipe and write the bill again; the run as it was needed nearly all of the 4.92 GiB that there were.

# %% [markdown] lang="zh"
# 现在可以回答那个问题了：什么办法有用？改一改训练方式，重写一遍账单。原来那次运行，几乎占满了能用的 4.92 GiB。

# %%
from dataclasses import replace

for change in ({}, {"accum": 1}, {"seq": 512}, {"checkpoint": "block"}):
    peak_bytes = ledger.predict(gpt2, replace(recipe, **change)).peak_bytes
    print(f"{format_bytes(peak_bytes):>9}  {change or 'as it was'}")

# %% [markdown] lang="en"
# Without accumulation one set of gradients is saved, since none has to wait through the next forward pass; more accumulation saves nothing at all. Sequences of half the length more than halve the large account, since attention's share falls with the square; so does checkpointing, which computes most of the activations twice instead of keeping them. Which of these to choose, and at what price, is what the lessons are about.
#
# ## What your machine is, and what the course does on it
#
# Everything runs without a graphics card: memory is measured by a *dry run*, which goes through a real training step without the numbers, and numerics are shown on tiny tensors. A card adds evidence of its own. Each notebook says at its top on which rung of this ladder it stands:
#
# | rung | what runs |
# |---|---|
# | CPU only | everything: the dry run for memory, tiny tensors for numerics |
# | 8 GB laptop card | real steps of small models |
# | 16 GB, such as Colab's T4 | FP16 with loss scaling; 7B only with 4-bit weights |
# | 24 GB | BF16 and LoRA on 7B: the recipe of lesson 05 |
# | larger | the same with larger batches, and full fine-tuning as far as the ledger says |

# %% [markdown] lang="zh"
# 不累积能省下一份梯度，因为不用再留着它等下一次前向传播；累积得更多，则一点也不省。序列短一半，账单的大头减掉一半还多，因为注意力那部分随长度的平方变化；梯度检查点也能做到，它把大部分激活值重算一遍，而不是一直留着。选哪一种、代价是多少，正是后面各课要讲的。
#
# ## 你的机器，以及课程在它上面做什么
#
# 没有显卡也能学完全部内容：显存靠*空跑*来量，也就是把真实的训练步骤走一遍，只是不带数值；数值现象用很小的张量来演示。有显卡，就多一份亲手测到的证据。每个 notebook 开头都会说明它站在哪一级：
#
# | 级别 | 能跑什么 |
# |---|---|
# | 只有 CPU | 全部：显存靠空跑，数值靠很小的张量 |
# | 8 GB 的笔记本显卡 | 小模型真跑 |
# | 16 GB，例如 Colab 的 T4 | FP16 加损失缩放；7B 只能用 4 位权重 |
# | 24 GB | 7B 用 BF16 加 LoRA：第 05 课的配方 |
# | 更大 | 同上，batch 更大，全量微调跑到账本允许的程度 |

# %%
from course_lib.cards import dotted
from course_lib.gpu import inspect_machine, training_type

machine = inspect_machine()
print(f"host memory {format_bytes(machine.host_memory_bytes)}, torch {machine.torch_version}")
for card in machine.cards:
    print(f"{card.name}, {format_bytes(card.total_bytes)}, capability {dotted(card.capability)}")
dtype, reason = training_type(machine)
print(f"train in {dtype}: {reason}")

# %% [markdown] lang="en"
# ## Save, and come back
#
# Your predictions and the tasks you passed are kept in one folder outside the notebooks; a restarted kernel, "run all" and the other language find them again.
#
# - **On your machine** the folder is the one below (`COURSE_STATE_DIR` names another). Save notebooks as usual.
# - **On Colab** a session is wiped when it ends. First *File → Save a copy in Drive*: that keeps the notebook. Then let the set-up cell's `keep_in_drive()` keep predictions and progress in your Drive; next time it finds them.

# %% [markdown] lang="zh"
# ## 保存进度，下次接着学
#
# 你的预测和做完的任务都存在 notebook 以外的一个文件夹里；重启内核、“全部运行”、换另一种语言的版本，都还找得到。
#
# - **在自己的机器上**，文件夹就是下面这个（可以用 `COURSE_STATE_DIR` 另指一个）。notebook 照常保存即可。
# - **在 Colab 上**，会话一结束就清空。先点*文件 → 在云端硬盘中保存一份副本*，保住 notebook；再运行开头提示的 `keep_in_drive()`，把预测和进度存进自己的云端硬盘，下次打开自动接上。

# %%
from course_lib.journal import predictions
from course_lib.reader_log import state_dir
from course_lib.tasks import passed

print(state_dir())
guessed = sum(each.value is not None for each in predictions().values())
print(f"predictions kept: {guessed}, tasks passed: {len(passed())}")

# %% [markdown] lang="en"
# ## Are you ready? Two minutes
#
# Four small questions. Write your answer in place of the dots; the check says at once what is wrong and why, and `hint("…")` helps. Compute in the cell as much as you like.
#
# **1.** How many parameters has `nn.Linear(1024, 4096)`?

# %% [markdown] lang="zh"
# ## 准备好了吗？两分钟自测
#
# 四个小问题。把省略号换成你的答案，检查会立刻告诉你错在哪里、为什么；卡住了就用 `hint("…")`。单元里可以随便写代码来算。
#
# **1.** `nn.Linear(1024, 4096)` 有多少个参数？

# %%
from course_lib.tasks import check, hint

parameters = ...
### BEGIN SOLUTION
parameters = 1024 * 4096 + 4096
### END SOLUTION
check("start.linear_parameters", parameters)

# %% [markdown] lang="en"
# **2.** How many MiB does a `float16` tensor of shape `[2, 1024, 4096]` take?

# %% [markdown] lang="zh"
# **2.** 形状为 `[2, 1024, 4096]` 的 `float16` 张量占多少 MiB？

# %%
tensor_mib = ...
### BEGIN SOLUTION
tensor_mib = 2 * 1024 * 4096 * 2 / 2**20
### END SOLUTION
check("start.tensor_mib", tensor_mib)

# %% [markdown] lang="en"
# **3.** `w` is one number with `requires_grad`. After `(3 * w).backward()`, twice, without `zero_grad`: what is `w.grad`?

# %% [markdown] lang="zh"
# **3.** `w` 是一个 `requires_grad` 的数。执行两次 `(3 * w).backward()`，中间没有 `zero_grad`，`w.grad` 是多少？

# %%
gradient = ...
### BEGIN SOLUTION
gradient = 3 + 3
### END SOLUTION
check("start.gradient_after_two", gradient)

# %% [markdown] lang="en"
# **4.** A checkpoint file has 28 GB. How many GiB is that?

# %% [markdown] lang="zh"
# **4.** 一个权重文件有 28 GB，合多少 GiB？

# %%
file_gib = ...
### BEGIN SOLUTION
file_gib = 28e9 / 2**30
### END SOLUTION
check("start.gib_of_a_28_gb_file", file_gib)

# %% [markdown] lang="en"
# All four passed, or failed for a reason that you now see: you are ready. If questions 1 and 3 were new, spend an hour with [PyTorch's own introduction](https://pytorch.org/tutorials/beginner/basics/intro.html) first.
#
# ## Three ways through the course
#
# | you have | go |
# |---|---|
# | **a bad day**: training has just failed, ten minutes | `06_troubleshooting`: find your symptom or paste the message; come back for the why |
# | **an interview** in a week | `01_ledger`, `02_mixed_precision`, `03_checkpointing`, one an evening; then `07_interview`, a little every day |
# | **three weeks** and the wish to know it | all lessons in order, with `ex1_precision` after 02, `ex2_checkpointing` after 03, `ex3_accumulation` after 04 |
#
# Each lesson has a core of 20 to 35 minutes and "deeper" sections that can wait.
#
# ## AI assistants
#
# Use them to explain an error, to argue about an answer, to ask for another example. Do not let one make your predictions: the guess is the part that teaches. In graded exercises your instructor's rules hold; where there are none, say in one line what you used. And check figures: assistants repeat wrong answers that were published, some of which this course takes apart, and write GB where they mean GiB.
#
# ## Next
#
# A 7B model has a file of 14 GB. Why can a card with 24 GB not train all of it? Four bills, and a fifth that surprises people: open `01_ledger`, in the file browser on the left.

# %% [markdown] lang="zh"
# 四题都过了，或者虽然没过但明白了原因，就可以开始。如果第 1 题和第 3 题很陌生，先花一小时读 [PyTorch 官方入门教程](https://pytorch.org/tutorials/beginner/basics/intro.html)。
#
# ## 三条路线
#
# | 你现在 | 这样走 |
# |---|---|
# | **正在救火**：训练刚刚挂掉，只有十分钟 | `06_troubleshooting`：按症状查，或者把报错贴进去；原理回头再看 |
# | **一周后面试** | 每晚一课：`01_ledger`、`02_mixed_precision`、`03_checkpointing`；然后每天练一点 `07_interview` |
# | **有三周，想真正学会** | 按顺序学完各课，02 之后做 `ex1_precision`，03 之后做 `ex2_checkpointing`，04 之后做 `ex3_accumulation` |
#
# 每课的主线 20 到 35 分钟，标着“深入”的部分可以以后再看。
#
# ## 怎么用 AI 助手
#
# 可以请它解释报错、和它争论一个答案、让它再举一个例子。但别让它替你预测：让人学到东西的正是那一猜。做计分练习时以老师的规定为准；没有规定，就用一句话写明用了什么。还要核对数字：网上流传的错误答案，AI 助手常常照搬（这门课会拆穿其中一些），GB 和 GiB 也常常混用。
#
# ## 下一个问题
#
# 7B 模型的文件是 14 GB，为什么 24 GB 的卡却做不了全量微调？四笔账，外加让人意外的第五笔：从左边的文件栏打开 `01_ledger`。
