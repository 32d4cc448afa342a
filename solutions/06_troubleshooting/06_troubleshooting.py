# %% [markdown] lang="en"
# # 06 · Troubleshooting: the clinic
#
# ***On a bad day*** *run the next two cells and paste your error message, or say in your own words what you see. The rest can wait.*
#
# *The core takes 20 minutes, the deeper sections another 40. Afterwards you can go from a symptom to its cause by evidence, and you know when the evidence is not enough.*

# %% [markdown] lang="zh"
# # 06 · 排障：训练诊所
#
# ***正在救火？*** *运行下面两个单元，把报错贴进去，或者用自己的话说说看到了什么。其余的以后再读。*
#
# *主线 20 分钟，深入部分再加 40 分钟。学完以后，你能凭证据从症状找到病因，也知道什么时候证据还不够、不该下结论。*

# %% tags=["setup"]
LANGUAGE = "en"

# %%
from course_lib.clinic import search_box, visit

search_box("loss is NaN in FP16")

# %% [markdown] lang="en"
# Nothing that fits? Two questions lead to every case of the clinic: **what do you see, and when?** In the picture a question mark says that the sign makes a cause likely, not certain. The table below it has all cases with the next change, and with what to look at to be surer; your browser's search (Ctrl+F) works in it. `visit("name")` runs a case before your eyes, broken and mended.

# %% [markdown] lang="zh"
# 没有合适的？两个问题可以走到诊所里的每一个病例：**看到了什么？什么时候？** 图里带问号的，表示这个迹象只说明很可能，还不能断定。图下面的表列出所有病例，写明下一步改什么、再看什么能更有把握；可以用浏览器的查找（Ctrl+F）。`visit("病例名")` 会当场把一个病例跑给你看：坏的跑一遍，修好的再跑一遍。

# %%
from course_lib.clinic import draw_tree, table_of_cases, tree_text
from course_lib.figures import show

show(draw_tree(), tree_text())
table_of_cases()

# %% [markdown] lang="en"
# ## A treatment before the diagnosis
#
# Somebody fine-tunes a GPT-2-like model of 760 million parameters on a T4, FP16, one sequence of 256 tokens at a time. It does not fit ([the report](https://github.com/ai-forever/ru-gpts/issues/27)):
#
# | the message says | |
# |---|---|
# | total capacity | 14.76 GiB |
# | already allocated | 13.25 GiB |
# | tried to allocate | 26.00 MiB |
#
# The replies recommended gradient checkpointing, which is what everybody recommends. **How many GiB does the peak fall by it?**

# %% [markdown] lang="zh"
# ## 还没诊断就开药
#
# 有人在 T4 上微调一个 7.6 亿参数、结构和 GPT-2 一样的模型，FP16，每次一条 256 个 token 的序列，结果装不下（[原始报告](https://github.com/ai-forever/ru-gpts/issues/27)）：
#
# | 报错里的数字 | |
# |---|---|
# | 总容量 | 14.76 GiB |
# | 已分配 | 13.25 GiB |
# | 想再分配 | 26.00 MiB |
#
# 回帖建议开梯度检查点，这也是人人都会给的建议。**开了以后，峰值能降多少 GiB？**

# %%
from course_lib.journal import predict, settle

checkpointing_saves_gib = ...  # GiB
### BEGIN SOLUTION
checkpointing_saves_gib = 3.0  # activations are "often half of the memory"
### END SOLUTION
predict("troubleshooting.checkpointing_saves_gib", checkpointing_saves_gib, unit="GiB")

# %%
from dataclasses import replace

import torch

from course_lib import ledger
from course_lib.models import GPT, GPTConfig
from course_lib.recipe import Recipe
from course_lib.units import GIB

with torch.device("meta"):  # sizes alone
    shape = GPT(GPTConfig(vocab=50257, block_size=2048, layers=24, heads=16, width=1536)).shape
as_reported = Recipe(precision="amp-fp16", attention="eager", batch=1, seq=256)
changes = {"as reported": {}, "checkpointing": {"checkpoint": "block"}, "8-bit Adam": {"optimizer": "adamw-8bit"}}
bills = {name: ledger.predict(shape, replace(as_reported, **change)) for name, change in changes.items()}

print(f"{shape.params:,} parameters")
for name, bill in bills.items():
    peaks = ", ".join(f"{moment} {size / GIB:.2f}" for moment, size in bill.moment_peaks.items())
    print(f"{name:14} peak {bill.peak_bytes / GIB:5.2f} GiB in {bill.peak_moment:15} ({peaks})")
saved = {name: (bills["as reported"].peak_bytes - bill.peak_bytes) / GIB for name, bill in bills.items()}
print(f"8-bit Adam takes off {saved['8-bit Adam']:.2f} GiB\n")
settle("troubleshooting.checkpointing_saves_gib", saved["checkpointing"], unit="GiB")

# %% [markdown] lang="en"
# Not a byte. With 256 tokens the activations are small, and at the peak, in the optimizer step, none of them is alive. What fills the card are 16 bytes a parameter and a temporary of the update; 8-bit Adam would have helped at once, checkpointing only made each step longer.
#
# So the clinic works like any other: *see* the symptom, *guess* the cause, *take a probe*, *name* it, *mend* it, and *see that it is gone*. Each of its loops is small and fails for real, on a pretended card of a few MiB where memory is the matter.
#
# ## See, and guess
#
# This loop has been training well; then comes validation. Before you run the cell: it says `model.eval()`, and nothing in it looks large. What will happen, and why?

# %% [markdown] lang="zh"
# 一个字节都没降。256 个 token 的激活值本来就小，而峰值落在优化器更新那一刻，那时激活值一个都不在了。占满显卡的是每个参数 16 字节，外加更新时的临时张量。换 8-bit Adam 立刻见效，开检查点只会让每一步更慢。
#
# 所以诊所的规矩和医院一样：*看*症状，*猜*病因，*下探针*，*定名*，*修*，最后*确认症状没了*。每个病例都是一个真会出错的小循环；凡是和显存有关的，都跑在一块假想的、只有几 MiB 的卡上。
#
# ## 看症状，猜病因
#
# 下面的循环训练得好好的，接着做验证。运行之前先想一想：`model.eval()` 也写了，里面没有哪样东西看着很大。会发生什么？为什么？

# %%
import torch

from course_lib.clinic import Chart, Watch
from course_lib.clinic.patients import batches, gpt, loss_of, sgd
from course_lib.units import MIB

card_bytes = 3 * MIB


def train(model):
    optimizer = sgd(model)
    for batch in batches(2, rows=4, length=64):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def validate(model):
    model.eval()
    total = 0.0
    for batch in batches(8, rows=4, length=64):
        total = total + loss_of(model, batch)
    return total / 8


try:
    with Watch(card_bytes=card_bytes) as watch:  # the probe: one line around any loop
        model = gpt(layers=1)
        train(model)
        validate(model)
except torch.OutOfMemoryError as error:
    print(error)

Chart(watch.reading)

# %% [markdown] lang="en"
# ## Take a probe, and name it
#
# The chart above is everything that `Watch` took down: it finds model, optimizer and scaler by itself, counts each byte, and looks at every gradient. Read it before you go on: in which pass did the run die, and was that pass taking notes for a backward pass? `diagnose` knows nothing but this chart; it does not know which loop ran.

# %% [markdown] lang="zh"
# ## 下探针，定名
#
# 上面这张病历就是 `Watch` 记下的全部内容：模型、优化器、scaler 都由它自己找到，每个字节都数，每个梯度都看。先读一读再往下走：循环死在哪一次前向？那一次前向有没有在为反向传播做记录？`diagnose` 只看这张病历，并不知道跑的是哪个循环。

# %%
from course_lib.clinic import diagnose

diagnose(watch.reading)

# %%
from course_lib.plots import alt_text, timeline

ax = timeline(watch.reading.trace)
ax.set_xlabel("two training steps, then validation, event by event")
show(ax, alt_text(watch.reading.trace))

# %% [markdown] lang="en"
# ## Mend it, and see it gone
#
# `eval()` switches dropout off, and nothing else. Autograd takes notes as before, and since `total` holds the last loss, and each loss its graph, every batch's activations stay. One line mends it. The same card, the same loop:

# %% [markdown] lang="zh"
# ## 修好，确认症状没了
#
# `eval()` 只是关掉 dropout，别的什么也不管。autograd 照常做记录；`total` 拿着损失，损失拿着计算图，于是每个批次的激活值全都留了下来。修它只要一行。同一块卡，同一个循环：

# %%
with Watch(card_bytes=card_bytes) as mended:
    model = gpt(layers=1)
    train(model)
    with torch.no_grad():
        validate(model)

print(f"peak {mended.reading.trace.peak_bytes / MIB:.2f} MiB of {card_bytes / MIB:.2f}")
diagnose(mended.reading)

# %% [markdown] lang="en"
# ## The six that everybody lists
#
# Most lists of training troubles have these six rows. Here they are, asked in everyday words, with what the clinic's own loops give away. Then the verdict on the causes as they are usually given:

# %% [markdown] lang="zh"
# ## 人人都列的六条
#
# 网上的排障清单大多有这六条。下面用日常的说法逐条去查，再让诊所里对应的循环自己招供。最后给流行的“病因”下个结论：

# %%
from course_lib.article import tell
from course_lib.clinic import opinion, search
from course_lib.lessons.troubleshooting import six_questions

for question in six_questions():
    name = search(question).names[0]
    (found,) = opinion(name).found
    print(f"{question}\n    → {name}: {found.evidence}")

tell("C16")

# %% [markdown] lang="en"
# What the usual list gets wrong: an *under*flow makes no NaN, it makes gradients of 0 and a loss that stands still (`fp16-underflow`); and a NaN need not come from 16 bits at all. Out of memory at the update is first of all Adam's state coming into being, and a temporary of the foreach implementation.
#
# ## Your turn: five blind cases
#
# Five runs, five charts, no names. Read a chart, then write the name of the case from the table above. One of the five does not say enough: its answer is `"cannot-tell"`. The check compares your answer with what the probe's evidence says, and tells you why a wrong one cannot be.

# %% [markdown] lang="zh"
# 常见清单说错了什么？*下溢*不会变出 NaN，只会让梯度变成 0、loss 一动不动（`fp16-underflow`）；而 NaN 也不一定和 16 位有关。至于更新时爆显存，首先是因为 Adam 的状态这时才产生，再加上 foreach 实现的临时张量。
#
# ## 轮到你了：五个盲诊
#
# 五次运行，五张病历，没有名字。读完病历，从上面的表里写出病例名。其中一张说得不够，答案是 `"cannot-tell"`（说不准）。检查会拿你的答案去对探针的证据；答错了，会告诉你为什么不可能是它。

# %%
from IPython.display import display

from course_lib.lessons.troubleshooting import blind
from course_lib.tasks import check, hint

display(blind("A"))
case_a = ...
### BEGIN SOLUTION
case_a = "longest-batch"
### END SOLUTION
check("troubleshooting.blind_a", case_a)

# %%
display(blind("B"))  # the loss hardly moves
case_b = ...
### BEGIN SOLUTION
case_b = "clipped-scaled"
### END SOLUTION
check("troubleshooting.blind_b", case_b)

# %%
display(blind("C"))  # checkpointing was switched on
case_c = ...
### BEGIN SOLUTION
case_c = "evaluation-mode"
### END SOLUTION
check("troubleshooting.blind_c", case_c)

# %%
display(blind("D"))  # a 7B with adapters, one sequence at a time; 65,497 steps went well
case_d = ...
### BEGIN SOLUTION
case_d = "cannot-tell"
### END SOLUTION
check("troubleshooting.blind_d", case_d)

# %%
display(blind("E"))  # the loss is NaN
case_e = ...
### BEGIN SOLUTION
case_e = "no-target"
### END SOLUTION
check("troubleshooting.blind_e", case_e)

# %% [markdown] lang="en"
# ## Say it in an interview
#
# **Training runs out of memory. What do you do first?** "I ask when: at loading, in the first step, in a later one, in evaluation. Then I look which account is largest at that moment, since a remedy only helps if it hits that one. In the optimizer step it is optimizer state and a temporary, so 8-bit Adam; in the backward pass it is activations or logits, so a smaller micro-batch, checkpointing or a fused loss. Checkpointing does nothing for a peak at the update."
#
# **The loss is NaN. Is it FP16?** "First I look where the first non-finite number appears. A forward operator with finite inputs near 65504 is an overflow. A cross-entropy without a single target, a logarithm of zero or a loss that grew for some steps before have nothing to do with precision; they stay in FP32. A scaler that halves in its first steps is working as it should."
#
# **It dies in step 5906 of 30,000. Leak or long sample?** "I look at the memory at the beginning of each step. If it rises by the same amount each time, something is kept; if it is flat, that step's batch was longer than all before. So I put the longest batch first, always."

# %% [markdown] lang="zh"
# ## 面试怎么说
#
# **训练爆显存了，你先做什么？** “先问什么时候爆的：加载时、第一步、后面某一步，还是验证时。再看那一刻哪笔账最大，因为办法只有砍中那笔账才有用。爆在优化器更新，大头是优化器状态和临时张量，就用 8-bit Adam；爆在反向传播，大头是激活值或 logits，就减小微批、开检查点，或者换融合的损失函数。峰值在更新那一刻的，开检查点一点用都没有。”
#
# **loss 变 NaN，是 FP16 的问题吗？** “先找第一个不是有限值的数出现在哪里。前向的某个算子，输入有限、接近 65504，输出成了 inf，那是上溢。而一个有效 target 都没有的交叉熵、log(0)、之前已经一步步变大的 loss，都和精度无关，换成 FP32 照样出。至于 scaler 头几步连续减半，那是它在正常工作。”
#
# **总共 3 万步，死在第 5906 步。是泄漏还是长样本？** “看每一步开头的显存：每步涨一样多，就是有东西一直没放；一直是平的，就是这一步的批次比之前的都长。所以我总把最长的批次排在最前面。”

# %% [markdown] lang="en"
# ## Deeper: any case, live
#
# `visit` runs a case through: symptom, chart, diagnosis, the change in the source, and the mended loop. Put any name from the table in its place.

# %% [markdown] lang="zh"
# ## 深入：随便挑一个病例，现场看
#
# `visit` 把一个病例从头走到尾：症状、病历、诊断、源码里改了什么、修好后的循环。换成表里任何一个名字都行。

# %%
from course_lib.clinic import visit

visit("reentrant-adapters")

# %% [markdown] lang="en"
# The symptom that hides best: the loss falls, since the head learns; the adapters, for whose sake all is done, never get a gradient.
#
# ## Deeper: a NaN has many fathers
#
# The first number that is not finite tells them apart. Five loops that end in NaN or infinity, and a healthy one that only looks ill: its scaler begins far too high.

# %% [markdown] lang="zh"
# 这是藏得最深的一个：loss 在降，因为输出层在学；而大费周章想训的适配器，从头到尾没有收到过梯度。
#
# ## 深入：NaN 不止一个来路
#
# 看第一个不是有限值的数，就能把它们分开。下面五个循环最后都出现 NaN 或无穷大；另外一个是健康的，只是看着像生病：它的 scaler 起点定得太高。

# %%
from course_lib.clinic import examine, find_case
from course_lib.clinic.patients import labels, mlp, scaler, vectors


def healthy_scaler():
    model, scaling = mlp(), scaler(2.0**24)
    optimizer = sgd(model)
    for x in vectors(8):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x).float(), labels(x))
        scaling.scale(loss).backward()
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()


readings = {name: find_case(name).read() for name in
            ("fp16-overflow", "half-adam", "no-target", "log-of-zero", "learning-rate")}  # fmt: skip
readings["healthy scaler"] = examine(healthy_scaler)
print(f"{'':16}{'first not finite in':22}{'operator':22}{'type':10}diagnosis")
for name, reading in readings.items():
    first = reading.nonfinite[0]
    kind = str(first.dtype).removeprefix("torch.")
    print(f"{name:16}{first.moment:22}{first.operator:22}{kind:10}{', '.join(diagnose(reading).names) or 'none'}")
print(f"\nhealthy scaler: {len(readings['healthy scaler'].updates)} updates of 8, the last with a scale of "
      f"2**{torch.tensor(readings['healthy scaler'].updates[-1].scale).log2():.0f}")

# %% [markdown] lang="en"
# Only the first is an overflow of FP16 in the forward pass, and only there BF16 is the cure. The healthy one overflows in the *backward* pass, which is what the scaler waits for: it skips the update, halves, and goes on.
#
# ## Deeper: what no loop on a processor shows
#
# Fragmentation, another process, a driver that spills to host memory: for these the clinic has figures from public reports. (The bytes of the last are made up: its report describes it in words.) Four figures of the message decide: what was *tried*, *allocated*, *reserved*, and what of the card is neither reserved nor free. `course oom train.log` reads them in a terminal, and the search field above does when you paste the whole message.

# %% [markdown] lang="zh"
# 只有第一个是 FP16 前向上溢，也只有它换 BF16 就好。健康的那个是在*反向*里上溢的，scaler 等的就是这个：跳过更新，减半，继续。
#
# ## 深入：处理器上演不出来的
#
# 碎片、别的进程、驱动把显存挪到内存：这几样，诊所用的是公开报告里的数字。（最后一个的报告只有文字描述，字节数是设想的。）起作用的是报错里的四个数：*想分配*多少、*已分配*多少、*已预留*多少，还有卡上既没预留也不空闲的有多少。在终端里，`course oom train.log` 会读这几个数；把完整报错贴进最上面的搜索框，它也会读。

# %%
for name in ("fragmentation", "elsewhere", "impossible-request", "spill"):
    reading = find_case(name).read()
    figures = ", ".join(f"{key[:-6]} {value / GIB:.2f}" for key, value in reading.counters.figures.items() if value)
    (found,) = diagnose(reading).found
    print(f"{name}: {figures} GiB\n    {found.evidence}")

# %% [markdown] lang="en"
# Only the first of them is a case for `empty_cache()` and allocator settings, which are recommended for all.
#
# ## Deeper: does the clinic mix them up?
#
# A doctor who always finds something is no use. Each case's broken loop, its row, against all diagnoses, the columns: dark where the sign is found. What stands off the diagonal would be a false alarm.

# %% [markdown] lang="zh"
# 其中只有第一种才轮得到 `empty_cache()` 和分配器设置，可是这两样常被当成万灵药。
#
# ## 深入：诊所会不会张冠李戴
#
# 逢人就能看出病的大夫没有用。每一行是一个病例的坏循环，每一列是一种诊断，找到迹象的格子是深色。对角线以外要是有深色格子，就是误诊。

# %%
from course_lib.clinic import confusion, confusion_text, draw_confusion

named = confusion()  # broken loop -> the diagnoses that it gets
print(confusion_text(named))
show(draw_confusion(named), confusion_text(named))

# %% [markdown] lang="en"
# ## Deeper: a recorder for your own loop
#
# `Watch` looks at every number, which is for small loops. For a run of hours there is the **recorder**: one line around each step (or around `trainer.train()`, see its docstring); it costs nothing on a card until a step dies, and then the error carries the step, the batch's shape, the bill and the next change. `longest_first` brings the batch that will not fit to the beginning, so that it dies in minute one and not at night.

# %% [markdown] lang="zh"
# ## 深入：给自己的循环装一个记录仪
#
# `Watch` 每个数都要看，适合小循环。要跑几个小时的训练用**记录仪**：在每一步外面套一行（用 Trainer 的就套在 `trainer.train()` 外面，写法见它的说明）。在显卡上，不出事就没有开销；某一步死了，异常会带上第几步、批次的形状、账单和下一步该改什么。`longest_first` 把最长的批次提到最前面：装不下就第一分钟死掉，别等到半夜。

# %%
from course_lib.recorder import Recorder, longest_first

lengths = [32, 32, 32, 128, 32]
data = [batches(1, rows=8, length=length)[0] for length in lengths]


def train_with_a_recorder():
    model = gpt(layers=2, length=128)
    optimizer = sgd(model)
    record = Recorder(model, optimizer)
    for batch in longest_first(data, length=lambda batch: batch[0].shape[1]):
        with record.step(batch):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()


try:
    with Watch(card_bytes=6 * MIB):
        train_with_a_recorder()
except torch.OutOfMemoryError as error:
    print(*error.__notes__, sep="\n")

# %% [markdown] lang="en"
# ## Deeper: what the clinic costs, and when it fails
#
# - **The probe slows a small loop several times**, since it sees each operator in Python. On a real run use the recorder, and the probe on a copy of the loop with a small model.
# - **Two illnesses at once.** `diagnose` may name both, or the one that ended the run. Mend what it names, and take the probe again.
# - **Signs are of eager PyTorch on one device.** `torch.compile`, several cards and offloading hide operators or move memory where the probe does not look.
# - **"Likely" is not "certain".** Signs of sizes and order can be met by a loop that has something else. That is why each row says what to look at to be surer.
# - **It abstains.** A report without the figures gets no name, as case D did not. Then the next step is not a remedy but a measurement.
#
# A symptom, a cause, the evidence, all in two minutes and aloud: that is what an interview asks for. `07_interview` has the questions.

# %% [markdown] lang="zh"
# ## 深入：诊所的代价，以及它什么时候不灵
#
# - **探针会让小循环慢几倍**，因为每个算子都要经过 Python。真正的训练用记录仪；探针用在同一个循环、换成小模型的副本上。
# - **同时得了两种病。** `diagnose` 可能两种都说，也可能只说让训练停下来的那一种。先修它说的，再下一次探针。
# - **这些迹象只适用于单设备、eager 模式的 PyTorch。** `torch.compile`、多卡、卸载到内存，会把算子藏起来，或者把显存挪到探针看不到的地方。
# - **“很可能”不等于“确定”。** 靠大小和先后推断的迹象，别的毛病也可能碰上。所以每一行都写了再看什么能更有把握。
# - **它会说“说不准”。** 报告里没有数字，就像盲诊 D，那就不下结论。这时下一步不是开药，而是去测量。
#
# 两分钟之内，当着人把症状、病因、证据讲清楚，这正是面试要的。题目都在 `07_interview`。
