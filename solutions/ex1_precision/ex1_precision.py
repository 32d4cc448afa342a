# %% [markdown] lang="en"
# # Exercise 1 · Is the peak halved?
#
# *20 points · difficulty 2 of 5 · importance 5 of 5 · 60 to 90 minutes · any machine, no graphics card needed · after lessons 01 and 02*
#
# **Afterwards you can say**: which bytes a 16-bit recipe halves and which it does not; how a peak is measured so that the number can be believed; and why mixed precision sometimes saves nothing at all.
#
# ## The table that surprises people
#
# Somebody fine-tunes BERT-base (108 million parameters, sequences of 128 tokens), once in FP32 and once in mixed precision, and reads the memory off ([the measurements](https://github.com/huggingface/transformers/issues/9742)):
#
# | batch | FP32 | mixed precision | saved |
# |---|---|---|---|
# | 8 | 4247 MB | 4163 MB | 2 % |
# | 16 | 4971 MB | 4793 MB | 4 % |
# | 32 | 6827 MB | 6207 MB | 9 % |
# | 64 | 10037 MB | 8061 MB | 20 % |
#
# A 16-bit number takes half the room of a 32-bit one. So why is nothing halved here? In this exercise you write the three functions that answer it: what is *stored*, what the *peak* is, and a *verdict* on both.
#
# ## How to work
#
# - Each step has a cell for your code, with a stub that you replace (all of it, `raise NotImplementedError()` included), and below it a cell with tests. Run both. A test that fails says what was expected, what came, and what the usual cause is.
# - When your work is graded, hidden tests check the same promises on other models, sizes and seeds. Each test cell earns its points on its own.
# - One answer is in words and is marked by a person. The last part runs on a graphics card, if you have one; it earns no points.
# - Both editions, English and Chinese, are graded alike.

# %% [markdown] lang="zh"
# # 练习 1 · 峰值减半了吗？
#
# *20 分 · 难度 2/5 · 重要性 5/5 · 60 到 90 分钟 · 任何机器都行，不需要显卡 · 学完 01、02 两课再做*
#
# **做完之后，你能说清**：16 位的训练方式让哪些字节减半、哪些不减；怎样测峰值，测出来的数才可信；为什么混合精度有时一点也不省。
#
# ## 一张让人意外的表
#
# 有人微调 BERT-base（1.08 亿参数，序列长 128），FP32 跑一遍，混合精度再跑一遍，读出显存（[实测数据](https://github.com/huggingface/transformers/issues/9742)）：
#
# | batch | FP32 | 混合精度 | 省下 |
# |---|---|---|---|
# | 8 | 4247 MB | 4163 MB | 2 % |
# | 16 | 4971 MB | 4793 MB | 4 % |
# | 32 | 6827 MB | 6207 MB | 9 % |
# | 64 | 10037 MB | 8061 MB | 20 % |
#
# 16 位的数只占 32 位的一半，可这里为什么什么都没减半？这个练习里你要写三个函数来回答：*存着的*有多少，*峰值*是多少，以及对两者的*判断*。
#
# ## 怎么做
#
# - 每一步都有一个写代码的单元（把里面的占位代码换成你的，连 `raise NotImplementedError()` 一起），下面跟着一个测试单元，两个都要运行。测试不通过时会告诉你：应该是多少，得到的是多少，常见原因是什么。
# - 批改时，隐藏测试会换别的模型、别的尺寸、别的随机种子，检查同样的要求。每个测试单元各算各的分。
# - 有一题用文字回答，由人来批。最后一部分在显卡上跑，有显卡就做，不计分。
# - 中文版和英文版的评分完全一样。

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# A GPT of 16 million parameters is trained on 8 sequences of 256 tokens. In FP32 its peak is 100 %. Where is it under BF16 autocast? Write your guess in place of the dots; it is kept, and nobody marks it.

# %% [markdown] lang="zh"
# ## 预测
#
# 一个 1600 万参数的 GPT，每步训练 8 条长 256 的序列。FP32 的峰值算 100%，用 BF16 autocast 会是百分之多少？把省略号换成你的猜测；它会被记下来，但不打分。

# %%
from course_lib.journal import predict, settle

guess_percent = ...  # the peak under autocast, in percent of the fp32 peak
predict("ex1.autocast_peak", guess_percent, unit="%")

# %% [markdown] lang="en"
# ## 1 · What is stored (3 points)
#
# Three recipes, all with AdamW:
#
# | recipe | what it is |
# |---|---|
# | `fp32` | everything in FP32 |
# | `amp-bf16` | the model is FP32; the forward pass runs inside `torch.autocast` with BF16 |
# | `bf16` | the model is cast: `model.bfloat16()`; no autocast |
#
# Write `static_bytes(n_params, recipe)`: the bytes that stay from step to step, in three accounts. It returns whole numbers, `{"weights": …, "gradients": …, "optimizer": …}`. A gradient has the type of its weight. AdamW keeps two numbers for each parameter, in the type of the parameter. An unknown recipe raises `ValueError`.

# %% [markdown] lang="zh"
# ## 1 · 存着多少（3 分）
#
# 三种训练方式，都用 AdamW：
#
# | 名称 | 做法 |
# |---|---|
# | `fp32` | 全部用 FP32 |
# | `amp-bf16` | 模型是 FP32；前向传播放在 BF16 的 `torch.autocast` 里 |
# | `bf16` | 整个模型转成 BF16：`model.bfloat16()`；不用 autocast |
#
# 请写 `static_bytes(n_params, recipe)`：从一步到下一步一直占着的字节数，分三个账目，返回整数 `{"weights": …, "gradients": …, "optimizer": …}`。梯度的类型和权重一样。AdamW 给每个参数存两个数，类型和参数一样。遇到不认识的名称，抛出 `ValueError`。

# %% answer="static-bytes"
def static_bytes(n_params: int, recipe: str) -> dict[str, int]:
    """Bytes of weights, gradients and AdamW's state under a recipe."""
    ### BEGIN SOLUTION
    if recipe not in ("fp32", "amp-bf16", "bf16"):
        raise ValueError(f"recipe: got {recipe!r}, expected fp32, amp-bf16 or bf16")
    number_bytes = 2 if recipe == "bf16" else 4  # autocast casts copies; what is stored stays fp32
    return {
        "weights": number_bytes * n_params,
        "gradients": number_bytes * n_params,
        "optimizer": 2 * number_bytes * n_params,
    }
    ### END SOLUTION

# %% tests="static-bytes-stored" points=2
from course_lib.exercises import precision

precision.check_static(static_bytes, ("fp32", "bf16"))
### BEGIN HIDDEN TESTS
precision.check_static(static_bytes, ("fp32", "bf16"), sizes=precision.some_sizes(seed=20260817))
### END HIDDEN TESTS

# %% tests="static-bytes-autocast" points=1
from course_lib.exercises import precision

precision.check_static(static_bytes, ("amp-bf16",))
### BEGIN HIDDEN TESTS
precision.check_static(static_bytes, ("amp-bf16",), sizes=precision.some_sizes(seed=20260818))
### END HIDDEN TESTS

# %% [markdown] lang="en"
# ## 2 · What the peak is (7 points)
#
# Write `measure_peak(make_model, make_batch, recipe, device)`: the most bytes that are allocated at once during **one whole training step**, that is forward pass, backward pass and optimizer step. Three things make the number honest:
#
# 1. **The second step counts.** AdamW creates its state in the first `step()`. So run one step, drop its gradients (`optimizer.zero_grad()`), and measure the next.
# 2. **The optimizer is `torch.optim.AdamW(model.parameters(), foreach=True)`**: what PyTorch takes on a card. On the CPU its default is another.
# 3. **Nothing older counts.** The model comes from `make_model()` once per call; no copy of it, no earlier model is alive while the step is measured. An earlier, higher peak must not show.
#
# What you are given: `make_model()` is a fresh FP32 model on `device`, `make_batch()` a pair `(tokens, targets)` there. `next_token_loss(model(tokens), targets)` is the loss; logits that have a name of their own stay alive as long as the name does, and count. `device` is `"cpu"`, `"meta"` or `"cuda"`; `torch.device(device).type` is the word that autocast wants.
#
# How to measure:
#
# - on `cpu` and `meta` with the course's probe, which wants the optimizer, too. `meta` tensors have sizes but no memory: the step behaves there as on a card. Run **every** step of a meta model inside a probe, and call it `torch.autocast(…)`, not by a name imported from torch, since outside of a probe PyTorch knows no autocast for `meta`.
#
# ```python
# with probe(model, optimizer) as measured:
#     ...                      # a step
# measured.peak_bytes          # an int
# ```
#
# - on `cuda` with PyTorch's own counters: `torch.cuda.reset_peak_memory_stats()`, `torch.cuda.max_memory_allocated()`, and `torch.cuda.synchronize()` before you read. You need no card: the tests bring a pretend one, made of meta tensors.

# %% [markdown] lang="zh"
# ## 2 · 峰值是多少（7 分）
#
# 请写 `measure_peak(make_model, make_batch, recipe, device)`：**完整的一步训练**里，同一时刻最多分配了多少字节。一步包括前向传播、反向传播和优化器更新。要让这个数可信，有三条：
#
# 1. **量第二步。** AdamW 在第一次 `step()` 时才建立状态。所以先跑一步，丢掉它的梯度（`optimizer.zero_grad()`），再量下一步。
# 2. **优化器用 `torch.optim.AdamW(model.parameters(), foreach=True)`**：PyTorch 在显卡上就是这样做的，在 CPU 上默认却是另一种。
# 3. **旧东西不算。** 每次调用只用 `make_model()` 造一个模型；量的时候，它的副本、以前的模型都不能还活着。以前更高的峰值也不能混进来。
#
# 给你的东西：`make_model()` 返回 `device` 上一个全新的 FP32 模型，`make_batch()` 返回那里的一对 `(tokens, targets)`。`next_token_loss(model(tokens), targets)` 是损失；要是给 logits 单独起了名字，名字在多久，它就占多久，会算进峰值。`device` 是 `"cpu"`、`"meta"` 或 `"cuda"`；autocast 要的设备名是 `torch.device(device).type`。
#
# 怎么量：
#
# - 在 `cpu` 和 `meta` 上用本课程的探针，要把优化器也交给它。`meta` 张量只有尺寸、没有内存，但训练步的行为和在显卡上一样。meta 模型的**每一步**都要放在探针里跑，并且要写成 `torch.autocast(…)`，不要从 torch 里单独导入，因为在探针之外 PyTorch 没有 `meta` 的 autocast。
#
# ```python
# with probe(model, optimizer) as measured:
#     ...                      # 一步
# measured.peak_bytes          # 一个 int
# ```
#
# - 在 `cuda` 上用 PyTorch 自己的计数器：`torch.cuda.reset_peak_memory_stats()`、`torch.cuda.max_memory_allocated()`，读数之前先 `torch.cuda.synchronize()`。没有显卡也能做：测试会带来一张由 meta 张量搭成的假显卡。

# %% answer="measure-peak"
import torch

from course_lib.models import next_token_loss
from course_lib.probe import probe


def measure_peak(make_model, make_batch, recipe: str, device: str) -> int:
    """Peak bytes of one whole training step with AdamW (foreach), its state present, everything older released."""
    ### BEGIN SOLUTION
    if recipe not in ("fp32", "amp-bf16", "bf16"):
        raise ValueError(f"recipe: got {recipe!r}, expected fp32, amp-bf16 or bf16")
    model, (tokens, targets) = make_model(), make_batch()
    if recipe == "bf16":
        model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    device_type = torch.device(device).type

    def step():
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=recipe == "amp-bf16"):
            loss = next_token_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if device_type == "cuda":
        step()  # makes Adam's state
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    with probe(model, optimizer):
        step()
    with probe(model, optimizer) as measured:
        step()
    return measured.peak_bytes
    ### END SOLUTION

# %% tests="measure-peak-fp32" points=3
from course_lib.exercises import precision

precision.check_peak(measure_peak)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

precision.check_peak(measure_peak, seed=20260819, model=MixGPT)
### END HIDDEN TESTS

# %% tests="measure-peak-recipes" points=2
from course_lib.exercises import precision

precision.check_recipes(measure_peak)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

precision.check_recipes(measure_peak, seed=20260820, model=MixGPT)
### END HIDDEN TESTS

# %% tests="measure-peak-released" points=2
from course_lib.exercises import precision

precision.check_released(measure_peak)
### BEGIN HIDDEN TESTS
from course_lib.exercises.variants import MixGPT

precision.check_released(measure_peak, seed=20260821, model=MixGPT)
### END HIDDEN TESTS

# %% [markdown] lang="en"
# ## 3 · The verdict (2 points)
#
# Write `verdict(static, peaks)`. `static[recipe]` is what `static_bytes` gives, `peaks[recipe]` is in bytes; both have the keys `fp32`, `amp-bf16` and `bf16`. It returns two dicts, each with the two 16-bit recipes as keys:
#
# - `"static_halves"`: whether the recipe stores **at most half** of what fp32 stores, all accounts together;
# - `"peak_ratio"`: the recipe's peak ÷ the fp32 peak.

# %% [markdown] lang="zh"
# ## 3 · 下判断（2 分）
#
# 请写 `verdict(static, peaks)`。`static[recipe]` 就是 `static_bytes` 的结果，`peaks[recipe]` 的单位是字节，两者的键都是 `fp32`、`amp-bf16`、`bf16`。返回两个字典，键都是那两种 16 位方式：
#
# - `"static_halves"`：这种方式存着的总量（三个账目合计），是否**不超过** fp32 的一半；
# - `"peak_ratio"`：这种方式的峰值 ÷ fp32 的峰值。

# %% answer="verdict"
def verdict(static: dict[str, dict[str, int]], peaks: dict[str, int]) -> dict[str, dict]:
    """Which 16-bit recipes halve what is stored, and what remains of the peak."""
    ### BEGIN SOLUTION
    stored = {recipe: sum(static[recipe].values()) for recipe in static}
    recipes = ("amp-bf16", "bf16")
    return {
        "static_halves": {recipe: 2 * stored[recipe] <= stored["fp32"] for recipe in recipes},
        "peak_ratio": {recipe: peaks[recipe] / peaks["fp32"] for recipe in recipes},
    }
    ### END SOLUTION

# %% tests="verdict-tests" points=2
from course_lib.exercises import precision

precision.check_verdict(verdict)
### BEGIN HIDDEN TESTS
precision.check_verdict(verdict, numbers=precision.some_numbers(seed=20260822))
### END HIDDEN TESTS

# %% [markdown] lang="en"
# Now put the three together on the GPT of your prediction. It is measured on `meta`, so the result is what a card would show.

# %% [markdown] lang="zh"
# 现在把三个函数用在预测时说的那个 GPT 上。它在 `meta` 上量，所以结果就是显卡会显示的。

# %%
import torch

from course_lib.exercises.figures import static_and_peak, static_and_peak_text
from course_lib.figures import show
from course_lib.models import GPT, GPTConfig

RECIPES = ("fp32", "amp-bf16", "bf16")


def peaks_of(config, batch, length, device="meta", recipes=RECIPES):
    """Peaks in bytes by recipe, measured with your function."""

    def make_model():
        with torch.device(device):
            return GPT(config)

    def make_batch():
        tokens = torch.randint(config.vocab, (batch, length + 1), device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return {recipe: measure_peak(make_model, make_batch, recipe, device) for recipe in recipes}


example = GPTConfig(vocab=4096, layers=4, heads=8, width=512, block_size=256)
with torch.device("meta"):
    n_params = sum(parameter.numel() for parameter in GPT(example).parameters())
static = {recipe: static_bytes(n_params, recipe) for recipe in RECIPES}
peaks = peaks_of(example, batch=8, length=256)
for question, answer in verdict(static, peaks).items():
    print(question, answer)
settle("ex1.autocast_peak", 100 * peaks["amp-bf16"] / peaks["fp32"])
show(lambda: static_and_peak(static, peaks), static_and_peak_text(static, peaks))

# %% [markdown] lang="en"
# That is the finding. **Autocast halves nothing that is stored**: weights, gradients and Adam's state stay FP32, and only activations become smaller. Pure BF16 halves what is stored, and with it nearly everything else. How much autocast saves depends on how large the activations are beside the rest, which is why the table at the top saves 2 % with 8 sequences and 20 % with 64.

# %% [markdown] lang="zh"
# 这就是结论。**存着的东西，autocast 一样也没减半**：权重、梯度、Adam 的状态仍是 FP32，变小的只有激活值。纯 BF16 才让存着的减半，其余几乎也跟着减半。autocast 能省多少，要看激活值和其他账目相比有多大；所以开头那张表里，batch 8 只省 2%，batch 64 才省 20%。

# %% [markdown] lang="en"
# ## 4 · Your own configuration (3 points)
#
# Choose a model and a batch that **you** would train: other sizes than the example's, between a million and ten billion parameters, at most 24 layers and 131,072 tokens in a batch, `my_length` at most the model's `block_size`. Measure it on `meta` with `peaks_of(my_config, my_batch, my_length)` in a cell of your own, and write down both peaks in **GiB** with three significant digits.
#
# Then say why autocast lowers this peak, or does not. Choose a letter; the right one depends on your configuration:
#
# - **A** – The fp32 peak falls in the optimizer's step. Nothing that autocast changes is alive then, so the peak stays as it is.
# - **B** – The fp32 peak falls in the forward or backward pass. Autocast makes the activations smaller; weights, gradients and Adam's state stay FP32.
# - **C** – Autocast halves everything that is stored, and so the peak.
# - **D** – Autocast adds 16-bit copies of the weights, and they outweigh what it saves.
#
# To see where a peak falls, run a step of your model in a probe of your own and look at `measured.trace.peak_moment`, or reason from the two numbers.

# %% [markdown] lang="zh"
# ## 4 · 你自己的配置（3 分）
#
# 选一个**你**想训练的模型和 batch：尺寸要和例子不同，参数在一百万到一百亿之间，最多 24 层，一个 batch 最多 131,072 个 token，`my_length` 不超过模型的 `block_size`。另开一个单元，用 `peaks_of(my_config, my_batch, my_length)` 在 `meta` 上量，把两个峰值用 **GiB** 写下来，保留三位有效数字。
#
# 然后说明 autocast 为什么降低了这个峰值，或者为什么没有。选一个字母，哪个对取决于你的配置：
#
# - **A** – fp32 的峰值落在优化器更新里。那时 autocast 能改变的东西都不在，所以峰值不变。
# - **B** – fp32 的峰值落在前向或反向传播里。autocast 让激活值变小；权重、梯度、Adam 的状态仍是 FP32。
# - **C** – autocast 让所有存着的东西减半，所以峰值也减半。
# - **D** – autocast 多存了一份 16 位的权重副本，超过了它省下的。
#
# 想知道峰值落在哪个时刻：自己用探针跑一步，看 `measured.trace.peak_moment`；或者从这两个数推断。

# %% answer="own-configuration"
from course_lib.models import GPTConfig

my_config = ...  # GPTConfig(vocab=…, layers=…, heads=…, width=…, block_size=…)
my_batch = ...  # sequences
my_length = ...  # tokens in each
fp32_peak_gib = ...
amp_peak_gib = ...
reason = ...  # "A", "B", "C" or "D"
### BEGIN SOLUTION
my_config = GPTConfig(vocab=8192, layers=6, heads=8, width=512, block_size=512)
my_batch, my_length = 8, 512
fp32_peak_gib, amp_peak_gib = 1.40, 1.05
reason = "B"
### END SOLUTION

# %% tests="own-peaks" points=2
from course_lib.exercises import precision

precision.check_own_peaks(my_config, my_batch, my_length, fp32_peak_gib, amp_peak_gib)

# %% tests="own-reason" points=1
from course_lib.exercises import precision

precision.check_own_reason(my_config, my_batch, my_length, reason)

# %% [markdown] lang="en"
# ## 5 · Explain it (5 points, marked by a person)
#
# A colleague writes: *“I turned on BF16 autocast for our model of a billion parameters, batch 2, 512 tokens. The memory in nvidia-smi is nearly the same as before. So autocast is not working, or this card cannot do BF16.”*
#
# Answer in five to ten sentences. A point each for:
#
# 1. what autocast leaves in FP32, and how many bytes per parameter that is;
# 2. what it makes smaller, and in which moment of the step that counts;
# 3. why it hardly shows for this batch, supported by a number that you measured above;
# 4. how to find out whether autocast is at work, and why nvidia-smi is the wrong place to look;
# 5. what would halve the peak, and what it costs.

# %% [markdown] lang="zh"
# ## 5 · 说清楚（5 分，由人批改）
#
# 一位同事来信：*“我给我们十亿参数的模型开了 BF16 autocast，batch 2，每条 512 个 token。nvidia-smi 里的显存和以前几乎一样。所以不是 autocast 没起作用，就是这块卡不支持 BF16。”*
#
# 请用五到十句话回复。下面每条一分：
#
# 1. autocast 让哪些东西仍是 FP32，合每个参数多少字节；
# 2. 它让什么变小，这在一步训练的哪个时刻才有用；
# 3. 为什么这个 batch 几乎看不出来，用你上面量到的一个数来支持；
# 4. 怎样确认 autocast 是否在起作用，为什么不该看 nvidia-smi；
# 5. 什么办法能让峰值减半，代价是什么。

# %% [markdown] lang="en" written="explain" points=5
# ### BEGIN SOLUTION
# Your autocast is most likely fine. It leaves weights, gradients and Adam's two moments in FP32: 4 + 4 + 8 = 16 bytes per parameter, so about 16 GB for a billion, and 4 more per parameter for a moment in a foreach step. Autocast only runs single operations in BF16, so it is the activations kept for the backward pass that become smaller; that lowers the peak if it falls in the forward or backward pass, and not at all if it falls in the optimizer's step. With 1024 tokens in a batch your activations are a small part of the bill and the peak is probably the optimizer's: in my measurement a wide model on few tokens had exactly the same peak under autocast, and only with 4096 tokens it fell to 76 %. To see whether autocast works, look at the dtype of a linear layer's output inside the region, and at torch.cuda.max_memory_allocated() in a probe at the end of the forward pass. nvidia-smi shows what the allocator holds and the CUDA context, not what is allocated at the peak. To halve what is stored, cast the model itself (pure BF16, 8 bytes per parameter); the price is that small updates are rounded away, so training may stall without FP32 master weights or stochastic rounding.
#
# **Mark scheme**, one point each:
#
# 1. FP32 weights, gradients *and* Adam's state named; 16 bytes per parameter (20 with the temporary is fine). “Master weights stay FP32” alone: no point.
# 2. Activations become smaller; it counts when the peak is in forward or backward. “It only saves time” is wrong.
# 3. Few tokens, so activations are small beside 16 GB (or the peak is in the optimizer's step), with a number of the student's own.
# 4. Any check that really shows it (dtype of an output, activations at the end of forward, a profile) **and** that nvidia-smi shows reserved memory and context, or is no peak. Half of it: no point.
# 5. Pure BF16 (or LoRA, an 8-bit optimizer) with its price: rounding of small updates, other results. “A newer card”: no point.
#
# Common: FP16 and BF16 confused (no deduction where the memory is right); “autocast halves the weights” costs point 1 even if 2 is right.
# ### END SOLUTION

# %% [markdown] lang="zh" written="explain" points=5
# ### BEGIN SOLUTION
# autocast 多半好好的。它让权重、梯度和 Adam 的两个动量仍是 FP32：每个参数 4 + 4 + 8 = 16 字节，十亿参数约 16 GB，foreach 的更新里还会有一刻每个参数多 4 字节。autocast 只是让单个运算用 BF16，所以变小的是留给反向传播的激活值；峰值落在前向或反向传播里时它才降低，落在优化器更新里就一点不降。一个 batch 只有 1024 个 token，激活值只占账单的一小部分，峰值多半在优化器那里：我量的时候，宽而 token 少的模型在 autocast 下峰值一点没变，token 到了 4096 才降到 76%。想知道 autocast 有没有起作用，就看区域里线性层输出的 dtype，或者用探针看前向结束时的激活值。nvidia-smi 显示的是分配器占着的显存加 CUDA 上下文，不是峰值时分配的量。想让存着的减半，要把模型本身转成 BF16（纯 BF16，每个参数 8 字节）；代价是很小的更新会被舍入掉，没有 FP32 主权重或随机舍入时训练可能停滞。
#
# **评分标准**，每条一分：
#
# 1. 说出权重、梯度**和** Adam 状态都是 FP32，每个参数 16 字节（算上临时张量说 20 也行）。只说“主权重是 FP32”不给分。
# 2. 激活值变小；峰值在前向或反向时才有用。“只省时间”是错的。
# 3. token 少，激活值和 16 GB 相比很小（或峰值在优化器更新里），并有自己量的一个数。
# 4. 任何真能看出来的办法（输出的 dtype、前向结束时的激活值、profile）**并且**说明 nvidia-smi 显示的是预留加上下文，或者说它不是峰值。只答一半不给分。
# 5. 纯 BF16（或 LoRA、8 位优化器）并说出代价：小更新被舍入、结果会变。“换新卡”不给分。
#
# 常见情况：把 FP16 和 BF16 混为一谈（显存说对了就不扣分）；“autocast 让权重减半”即使第 2 条对了也丢第 1 分。
# ### END SOLUTION

# %% [markdown] lang="en"
# ## On a real card (no points)
#
# With a card, this measures a GPT of GPT-2's size there and keeps the result in your notebook, with card, versions and day. Without one it says so, and you are done.
#
# **On Colab's T4**, expect the fp32 figures to agree with the dry run within a few per cent. The two 16-bit recipes run, slowly: the T4 has no BF16 (`torch.cuda.is_bf16_supported()` answers True by emulation), and its 16-bit attention kernels take FP16 only, so BF16 attention falls back to the plain formula and keeps its score matrices: batch × heads × length² numbers for each layer, more than once. So expect about 3.9 GiB for `amp-bf16` and 2.5 GiB for `bf16` where the dry run, which imitates a newer card, predicts 3.2 and 1.8: on a T4 autocast may even raise the peak. That is no mistake of yours, and worth a sentence.

# %% [markdown] lang="zh"
# ## 在真的显卡上（不计分）
#
# 有显卡的话，这里会用它量一个 GPT-2 大小的 GPT，把结果连同显卡、版本和日期留在你的 notebook 里。没有显卡的话，它会说一声，练习就做完了。
#
# **在 Colab 的 T4 上**，fp32 的数应该和空跑相差百分之几以内。两种 16 位方式也能跑，只是慢：T4 没有 BF16（`torch.cuda.is_bf16_supported()` 回答 True 是靠模拟），它的 16 位注意力内核只认 FP16，所以 BF16 的注意力会退回普通公式，留下分数矩阵：每层 batch × 头数 × 长度² 个数，还不止一份。因此 `amp-bf16` 大约会到 3.9 GiB，`bf16` 大约 2.5 GiB，而空跑模仿的是更新的卡，预测的是 3.2 和 1.8：在 T4 上，autocast 甚至可能抬高峰值。这不是你写错了，值得写一句说明。

# %%
from course_lib.exercises.evidence import record

gpt2_size = GPTConfig(vocab=50257, layers=12, heads=12, width=768, block_size=512)
record(lambda device: peaks_of(gpt2_size, batch=4, length=512, device=device))

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

prepare("ex1_precision")
