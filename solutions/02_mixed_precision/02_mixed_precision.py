# %% [markdown] lang="en"
# # 02 · Mixed precision
#
# *The core takes 20 minutes, the deeper sections another 40. Before it: `01_ledger`. Afterwards you can say what each 16-bit type can hold, what a loss scaler does, which bills autocast shrinks and which it makes larger, and which type belongs on which card.*
#
# ## The loss is nan at step 34
#
# Somebody fine-tunes T5-base in FP16 mixed precision. At step 34 the loss is `nan`, and stays so. The hunt for the first infinite number ends in a feed-forward layer, which in FP32 would have put out a harmless figure ([the report](https://github.com/huggingface/transformers/issues/5651)):
#
# | the report says | |
# |---|---|
# | the layer's output, in FP32 | 66246.39 |
# | FP16's largest number | 65504 |
#
# T5 was pretrained in BF16, which has 16 bits as well, and never met this problem. **Which 16 bits can one train in, what do they cost, and what do they save?**

# %% [markdown] lang="zh"
# # 02 · 混合精度
#
# *主线 20 分钟，深入部分再加 40 分钟。先学 `01_ledger`。学完以后，你说得清两种 16 位类型各能装下什么数、损失缩放在做什么、autocast 让哪几笔账变小又让哪笔变大，以及哪张卡该用哪种类型。*
#
# ## 第 34 步，loss 变成了 nan
#
# 有人用 FP16 混合精度微调 T5-base，跑到第 34 步，loss 成了 `nan`，从此再没变回来。顺藤摸瓜找第一个无穷大，最后找到一个前馈层。换成 FP32，它的输出只是个普普通通的数（[原始报告](https://github.com/huggingface/transformers/issues/5651)）：
#
# | 报告里的数字 | |
# |---|---|
# | 这一层在 FP32 下的输出 | 66246.39 |
# | FP16 的最大值 | 65504 |
#
# T5 预训练用的是 BF16，同样是 16 位，却从没碰到这个问题。**16 位到底能不能训？用哪一种？要付什么代价，又省下了什么？**

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# 1. What becomes of 66246.39 when it is written in FP16? `"65504"`, `"66240"` or `"inf"`?
# 2. A small GPT has been trained for 200 steps. It reads 2048 tokens, as a 7B does with one sequence, and the backward pass begins with the gradients of its logits. How many **per cent** of them does FP16 turn into exactly 0?
# 3. Llama-2-7B, one sequence of 2048 tokens: what the forward pass leaves behind for the backward pass is 100 % in FP32. How many per cent is it under FP16 autocast?

# %% [markdown] lang="zh"
# ## 预测
#
# 1. 66246.39 写成 FP16 会变成什么？`"65504"`、`"66240"`，还是 `"inf"`？
# 2. 一个小 GPT 训练了 200 步。现在给它 2048 个 token（正好是 7B 的一条序列），反向传播从 logits 的梯度开始。这些梯度里有**百分之多少**会被 FP16 变成 0？
# 3. Llama-2-7B，一条 2048 个 token 的序列：前向传播留给反向传播的东西，FP32 算 100%，FP16 autocast 下是百分之多少？

# %%
from course_lib.journal import predict, settle

t5_value = ...  # "65504", "66240" or "inf"
lost_percent = ...  # of the gradients of the logits
activations_percent = ...  # of what FP32 leaves behind
### BEGIN SOLUTION
t5_value = "65504"  # the largest number there is
lost_percent = 5
activations_percent = 50  # half the bits
### END SOLUTION
predict("precision.t5_value", t5_value)
predict("precision.lost_percent", lost_percent, unit="%")
predict("precision.activations_percent", activations_percent, unit="%")

# %% [markdown] lang="en"
# ## Sixteen bits, dealt out in two ways
#
# A floating-point number has a sign, an **exponent**, which says between which powers of two it lies, and a **mantissa**, which says where between them. Exponent bits buy range, mantissa bits buy exactness, and 16 bits do not buy both. Type a number, or move the slider with the arrow keys: it multiplies by powers of two.
#
# - Take 66246.39 down until FP16 can hold it.
# - Which of the three change only their blue field while you multiply?
# - Try `1e-8`, and 20 on the slider. That is what loss scaling will do.
#
# The cell after it lists the landmarks of each type, as `torch.finfo` knows them. One it leaves out: below the smallest *normal* number come the **subnormal** ones, which have no leading 1 any more and lose a bit with each halving, until nothing is left.

# %% [markdown] lang="zh"
# ## 同样 16 位，两种分法
#
# 一个浮点数分三段：符号；**指数**，说明它落在哪两个 2 的幂之间；**尾数**，说明在这中间的什么位置。指数位多，范围就大；尾数位多，数就准。一共只有 16 位，两样不能兼得。下面可以输入任意数，也可以用方向键拖滑块，给它乘上 2 的若干次方。
#
# - 把 66246.39 往小里乘，直到 FP16 装得下。
# - 乘的时候，哪几行只有蓝色那一段在变？
# - 输入 `1e-8`，再把滑块拖到 20。后面的损失缩放，做的就是这件事。
#
# 再下面一个单元列出每种类型的几个关键数，来自 `torch.finfo`。它漏了一个：比最小*规格化数*还小的，是**次规格化数**（subnormal）。它们不再有开头的那个 1，每小一半就少一位有效数字，直到一位不剩。

# %%
from course_lib.bits_widget import bits_explorer

bits_explorer(66246.39)

# %%
import torch

from course_lib.claims import judge
from course_lib.floats import BF16, FLOAT_TYPES, FP16, FP32

smallest = {}
print(f"{'':6}{'bits':>10}{'largest':>12}{'smallest normal':>17}{'smallest':>11}{'after 1 comes':>16}{'66246.39 is':>13}")
for kind in FLOAT_TYPES:
    info = torch.finfo(kind.dtype)
    smallest[kind.name] = info.smallest_normal * info.eps  # subnormal: one bit of the mantissa is left
    assert kind.stored(smallest[kind.name]) > 0 == kind.stored(smallest[kind.name] / 2)
    print(f"{kind.name:6}{'+'.join(map(str, kind.fields)):>10}{info.max:12.4g}{info.smallest_normal:17.2g}"
          f"{smallest[kind.name]:11.2g}{1 + info.eps:16.7f}{kind.stored(66246.39):13,.2f}")

print()
settle("precision.t5_value", str(FP16.stored(66246.39)))
fp16 = torch.finfo(torch.float16)
about_6e_5 = {"smallest normal": fp16.smallest_normal, "smallest positive": smallest["FP16"]}
judge("C3", {"max": fp16.max == 65504} | {name: 5.5e-5 < size < 6.5e-5 for name, size in about_6e_5.items()})
same_range = FP32.exponent_bits == BF16.exponent_bits
judge("C5", {"range": same_range, "1 + 8 + 7": BF16.fields == (1, 8, 7), "1 + 5 + 10": FP16.fields == (1, 5, 10)})

# %% [markdown] lang="en"
# So T5's number was no large error: it is 1 % beyond the largest that FP16 has. BF16 stores it a little off (66048) and goes on. That is the trade: BF16 has FP32's range and only two to three decimal digits; FP16 has a digit more, between 65504 and about 6e-8.
#
# ## Where gradients live
#
# The upper end bites in the forward pass, the lower one in the backward pass. A mean over many tokens makes gradients small, since each token contributes its part divided by their number. Train a real model, small enough for any machine, and look at the gradients that arrive at its layers:

# %% [markdown] lang="zh"
# 所以 T5 的那个数并不离谱，只比 FP16 的最大值大了 1%。BF16 存下来稍有偏差（66048），训练照常进行。取舍就在这里：BF16 有 FP32 的范围，却只有两三位十进制有效数字；FP16 多一位，但只能在 65504 和大约 6e-8 之间。
#
# ## 梯度有多大
#
# 上限卡的是前向，下限卡的是反向。损失要对很多 token 求平均，每个 token 的那一份都要除以 token 数，所以梯度很小。训练一个真实的模型（小到什么机器都跑得动），看看传到各层的梯度：

# %%
import numpy as np

from course_lib.corpus import VOCAB, draw_batch
from course_lib.figures import show
from course_lib.float_plots import gradient_histogram, gradient_histogram_text, zone_shares
from course_lib.models import GPT, GPTConfig, next_token_loss

torch.set_num_threads(1)  # for matrices this small a second thread costs more than it brings
torch.manual_seed(0)
draw = torch.Generator().manual_seed(0)
model = GPT(GPTConfig(layers=2, width=32, vocab=VOCAB, block_size=32))  # a token is a byte
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _step in range(200):
    tokens, targets = draw_batch(8, 32, draw)  # [B, T] each
    loss = next_token_loss(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
trained = {name: weight.clone() for name, weight in model.state_dict().items()}

arriving = []  # gradients in the order of the backward pass; the logits' come first


def watch(_module, _inputs, output):
    output.register_hook(lambda gradient: arriving.append(gradient.abs().flatten()))


layers = (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.GELU)
watches = [each.register_forward_hook(watch) for each in model.modules() if isinstance(each, layers)]
tokens, targets = draw_batch(64, 32, draw)  # 2048 tokens
loss = next_token_loss(model(tokens), targets)
loss.backward()
for each in watches:
    each.remove()

sizes = {"of the logits": arriving[0].numpy(), "of all layers": torch.cat(arriving).numpy()}
for name, each in sizes.items():
    zero, subnormal, normal, infinite = zone_shares(each)
    print(f"{name}: 0 in FP16 {zero:.0%}, subnormal {subnormal:.0%}, normal {normal:.0%}")
settle("precision.lost_percent", 100 * zone_shares(sizes["of the logits"])[0], unit="%")
show(gradient_histogram(sizes, 2.0**16), gradient_histogram_text(sizes, 2.0**16))

# %% [markdown] lang="en"
# Nearly everything lies where FP16 has no full mantissa any more, and of the logits' gradients more than half are gone before the backward pass has begun. On the right there is room: thirty powers of two, all unused.
#
# ## Loss scaling
#
# Multiply the loss by $2^{16}$, and by the chain rule every gradient is multiplied, too: the whole histogram moves to the right (the lower picture). Divide the weights' gradients, which are FP32, by the same number before the update. That is **loss scaling**. Does it matter? Compute one weight gradient in FP16 with scales from $2^{-12}$ to $2^{24}$, and compare with FP32's:

# %% [markdown] lang="zh"
# 几乎所有梯度都落在 FP16 尾数已经不完整的地方；logits 的梯度，反向传播还没开始就丢了一大半。而右边空着：三十个 2 的幂，一个也没用上。
#
# ## 损失缩放
#
# 把损失乘上 $2^{16}$，按链式法则，所有梯度都跟着放大同样的倍数，整张直方图往右移（下半图）。更新之前，再把权重的梯度（它们是 FP32）除以同一个数。这就是**损失缩放**。真有必要吗？用从 $2^{-12}$ 到 $2^{24}$ 的各种缩放，在 FP16 里算同一个权重梯度，再和 FP32 的比一比：

# %%
from course_lib.float_plots import scale_window, scale_window_text


def weight_gradient(dtype, scale=1.0):
    """All weights' gradients of the batch above as one vector, computed under autocast and divided by the scale."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
        loss = next_token_loss(model(tokens), targets)
    (scale * loss).backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()]).double() / scale


def error_of(dtype, scale=1.0):
    difference = weight_gradient(dtype, scale) - exact
    return (difference.norm() / exact.norm()).item() if difference.isfinite().all() else float("inf")


tokens, targets = draw_batch(64, 32, draw)
exact = weight_gradient(torch.float32)
errors = {exponent: error_of(torch.float16, 2.0**exponent) for exponent in range(-12, 27, 4)}
bf16_error = error_of(torch.bfloat16)
print("".join(f"{f'2^{exponent}':>8}" for exponent in errors))
print("".join(f"{error:8.1%}" for error in errors.values()))
print(f"BF16, no scale: {bf16_error:.1%}")
show(scale_window(errors, bf16_error), scale_window_text(errors, bf16_error))

# %% [markdown] lang="en"
# FP16 has a window. Inside it is several times as exact as BF16, which has three bits less; to the left, gradients crumble into subnormals and then into nothing; to the right, something overflows and the whole step is lost. At scale 1, without a scaler, it is already less exact than BF16, and still this model would train. But divide the loss by the micro-batches of an accumulation (lesson 04), or by more tokens, and you move to the left. BF16 needs no window.
#
# Where the window is depends on model, batch and progress, so a scaler has to look for it: `torch.amp.GradScaler` begins with $2^{16}$, **skips** a step in which a gradient is infinite, and halves; after many good steps it doubles. Many means 2000; here it is 10, so that you see it happen.

# %% [markdown] lang="zh"
# FP16 有一个窗口。在窗口里，它比少三位尾数的 BF16 精确好几倍；往左，梯度先碎成次规格化数，再变成 0；往右，某个地方溢出，这一步就全废了。缩放为 1，也就是不用缩放器时，它已经不如 BF16 准，不过这个小模型还训得动；可是梯度累积要把损失除以微批数（第 04 课），token 再多也要除，都是在往左走。BF16 不需要窗口。
#
# 窗口在哪儿，要看模型、batch 和训练到了哪一步，所以得有人一直去找：`torch.amp.GradScaler` 从 $2^{16}$ 开始，哪一步梯度出现无穷大，就**跳过**这一步并把缩放减半；连续许多步都正常，就翻倍。“许多”默认是 2000 步，这里设成 10，好让你亲眼看到。

# %%
from course_lib.float_plots import scaler_history, scaler_history_text

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", growth_interval=10)  # on a card: "cuda", and leave the interval alone
losses, scales, skipped = [], [], []
for step in range(60):
    tokens, targets = draw_batch(8, 32, draw)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):  # the forward pass alone
        loss = next_token_loss(model(tokens), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # from here on gradients have their true size: this is where one clips
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # does nothing if a gradient was infinite
    losses.append(loss.item())
    scales.append(scaler.get_scale())
    scaler.update()  # halves after an overflow, doubles after growth_interval good steps
    if scaler.get_scale() < scales[-1]:
        skipped.append(step)

print(f"skipped: steps {skipped}; scale at most 2^{np.log2(max(scales)):.0f}, at the end 2^{np.log2(scaler.get_scale()):.0f}")
show(scaler_history(losses, scales, skipped), scaler_history_text(losses, scales, skipped))

# %% [markdown] lang="en"
# A skipped step now and then is the scaler at work, not a fault ([somebody asked](https://github.com/NVIDIA/apex/issues/864)); a scale that keeps falling towards 1 is one. And no scaler would have helped T5: its overflow is in the *forward* pass, where nothing is scaled. Only a type with more range does, BF16 or, for that layer, FP32.
#
# ## What autocast halves, and what it does not
#
# The training loop above shows what `torch.autocast` is: a region in which single operations take 16-bit copies of what they are given. The weights it copies from stay FP32, and so does everything that hangs on them. Ask a real step, then the dry run of a 7B, column by column:

# %% [markdown] lang="zh"
# 偶尔跳过一步，是缩放器在正常干活，不是故障（[有人专门问过](https://github.com/NVIDIA/apex/issues/864)）；缩放一路往 1 掉，才是出了问题。另外，缩放器救不了 T5：它是在*前向*里溢出的，那里什么都没缩放。只有换一种范围更大的类型才行：BF16，或者让那一层用 FP32。
#
# ## autocast 让什么减半，不让什么减半
#
# 上面的训练循环已经说明了 `torch.autocast` 是什么：在这个区域里，个别运算先把输入转成 16 位的副本再算。被复制的权重仍是 FP32，挂在权重上的一切也是。先问一个真实的训练步，再逐列看 7B 的空跑：

# %%
from dataclasses import replace

from course_lib.accounts import Account, Moment
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config, read_model
from course_lib.recipe import Recipe
from course_lib.units import GIB

weights = list(model.parameters())
moments = [value for each in weights for name, value in optimizer.state[each].items() if name != "step"]
kept = {"weights": weights, "gradients": [each.grad for each in weights], "Adam's moments": moments}
judge("C9", {name: {each.dtype for each in tensors} == {torch.float32} for name, tensors in kept.items()})

config, llama = read_config("llama-7b"), read_model("llama-7b")
fp32 = Recipe(precision="fp32", optimizer_impl="fused", batch=1, seq=2048)
runs = {name: replace(fp32, precision=name) for name in ("fp32", "amp-fp16", "bf16")}
runs |= {f"{name}, batch 8": replace(runs[name], batch=8) for name in ("fp32", "amp-fp16")}
traces = {name: dry_run_config(config, recipe) for name, recipe in runs.items()}
left = {name: trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS] for name, trace in traces.items()}

print(f"\n{'7B, GiB':18}{'weights':>9}{'gradients':>11}{'optimizer':>11}{'left by forward':>17}{'peak':>8}")
for name, trace in traces.items():
    stays = "".join(f"{trace.static_bytes[each] / GIB:{width}.1f}"
                    for each, width in ((Account.WEIGHTS, 9), (Account.GRADIENTS, 11), (Account.OPTIMIZER, 11)))
    print(f"{name:18}{stays}{left[name] / GIB:17.1f}{trace.peak_bytes / GIB:8.1f}")
cast_bytes = 2 * (llama.params - llama.vocab * llama.hidden - (2 * llama.layers + 1) * llama.hidden)
print(f"16-bit copies of all matrices: {cast_bytes / GIB:.1f} GiB\n")
settle("precision.activations_percent", 100 * left["amp-fp16"] / left["fp32"], unit="%")

# %% [markdown] lang="en"
# A surprise: under autocast the forward pass of the 7B leaves *more* behind, and the peak rises. The matrices' 16-bit copies are kept for the backward pass, one for each weight, however small the batch is. Only what grows with the tokens shrinks, and not even that by half, since the residual stream and the norms stay FP32. With 8 sequences it pays. That explains the table of people who measured a saving of 2 % at batch 8 and 20 % at batch 64 ([BERT-base](https://github.com/huggingface/transformers/issues/9742)). The copies are temporary: when region and backward pass are over, they are gone.
#
# Pure BF16 halves every column (what forward leaves, almost), because it *stores* 16 bits. Its price comes below, among the deeper sections.
#
# And the speed? Tensor cores multiply 16-bit matrices several times as fast, so a large model gains. A network of small operations does not. Others measured ([ResNet-20](https://github.com/NVIDIA/apex/issues/297), 15 minutes became 21; [SCN](https://github.com/facebookresearch/fairchem/issues/397), 5.44 s became 9.06). Why, is told in a deeper section.
#
# ## Which type for which card
#
# Two numbers decide, and they are in the card's **compute capability**: from 7.0 on there are tensor cores for FP16, from 8.0 on (Ampere) BF16 is native. Do not ask `torch.cuda.is_bf16_supported()`: on Colab's free T4 it answers True, since it counts emulation ([seen there](https://github.com/MakazhanAlpamys/Soup/issues/387)).
#
# **Task.** Write `type_for(capability)`: `"bf16"`, `"fp16"` or `"fp32"`. A capability is a tuple such as `(7, 5)`. `hint("precision.type_for")` helps.

# %% [markdown] lang="zh"
# 没想到吧：在 autocast 下，7B 的前向反而留下了*更多*东西，峰值也更高。所有矩阵的 16 位副本都要留到反向传播，每个权重一份，和 batch 多小无关。会变小的只有随 token 数增长的那部分，而且也不到一半，因为残差流和归一化层仍是 FP32。8 条序列时才划算。有人测到 batch 8 只省 2%、batch 64 省 20%（[BERT-base](https://github.com/huggingface/transformers/issues/9742)），原因就在这里。这些副本是临时的：区域和反向传播都结束后，它们就没了。
#
# 纯 BF16 每一列都减半（前向留下的那列差一点），因为它*存*的就是 16 位。它的代价，后面的深入部分再说。
#
# 速度呢？Tensor Core 算 16 位矩阵要快好几倍，大模型当然受益；由许多小运算组成的网络就不行了。别人实测过（[ResNet-20](https://github.com/NVIDIA/apex/issues/297)，15 分钟变成 21 分钟；[SCN](https://github.com/facebookresearch/fairchem/issues/397)，5.44 秒变成 9.06 秒）。为什么会这样，深入部分再讲。
#
# ## 哪张卡用哪种类型
#
# 看两个数就够了，它们都在显卡的**计算能力**（compute capability）里：7.0 起有 FP16 的 Tensor Core，8.0 起（Ampere）原生支持 BF16。别去问 `torch.cuda.is_bf16_supported()`：在 Colab 免费的 T4 上它也说 True，因为它把模拟也算作支持（[有人踩过](https://github.com/MakazhanAlpamys/Soup/issues/387)）。
#
# **任务。** 写出 `type_for(capability)`，返回 `"bf16"`、`"fp16"` 或 `"fp32"`。计算能力是一个元组，例如 `(7, 5)`。需要提示就运行 `hint("precision.type_for")`。

# %%
from course_lib.cards import CARDS
from course_lib.gpu import inspect_machine, training_type
from course_lib.tasks import check, hint


def type_for(capability):
    """The type to train in on a card of this compute capability."""
    ...
    ### BEGIN SOLUTION
    if capability >= (8, 0):
        return "bf16"
    return "fp16" if capability >= (7, 0) else "fp32"
    ### END SOLUTION


check("precision.type_for", type_for)

by_capability = {}
for card in sorted(CARDS, key=lambda card: (card.capability, len(card.name))):  # short names first
    by_capability.setdefault(card.capability, []).append(card)
for capability, group in by_capability.items():
    major, minor = capability
    names = ", ".join(card.name for card in group[:5]) + (", ..." if len(group) > 5 else "")
    print(f"{major}.{minor:<4}{group[0].training_type().dtype:6}{names}")
print("\nthis machine:", *training_type(inspect_machine()), sep=" - ")

ampere_or_fp16 = {f"{group[0].name}, {major}.{minor}":
                  group[0].training_type().dtype == ("bf16" if (major, minor) >= (8, 0) else "fp16")
                  for (major, minor), group in by_capability.items()}
judge("C6", ampere_or_fp16)

# %% [markdown] lang="en"
# ## Your turn: one step in FP16
#
# **Task.** Write the part of an FP16 step that comes after the forward pass, with clipping. You get the loss, the list of parameters, the optimizer, the scaler and the longest length that the gradient may have. The order is what matters: a gradient that still carries the scale is thousands of times too long, and clipping would cut it to nothing.

# %% [markdown] lang="zh"
# ## 轮到你了：写一步 FP16
#
# **任务。** 写出 FP16 训练步里前向之后的部分，要带梯度裁剪。给你的是损失、参数列表、优化器、缩放器，以及梯度允许的最大长度。关键在顺序：还带着缩放的梯度比真实长度大上千倍，这时候去裁剪，就什么都不剩了。

# %%
def fp16_step(loss, parameters, optimizer, scaler, max_norm):
    """One update from a loss that was computed under FP16 autocast; drops the gradients at its end."""
    ...
    ### BEGIN SOLUTION
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    ### END SOLUTION


check("precision.fp16_step", fp16_step)

# %% [markdown] lang="en"
# ## Say it in an interview
#
# **FP16 or BF16, and what is the difference?** "Both have 16 bits. FP16 spends 5 on the exponent and 10 on the mantissa: it is more exact, but ends at 65504 and at about 6e-8. BF16 spends 8 and 7: FP32's range, two to three digits. On Ampere and later I train in BF16. On a V100 or T4 in FP16 with a loss scaler, and I look at the compute capability, since PyTorch reports BF16 there by emulation."
#
# **What does a loss scaler do?** "Gradients in the backward pass are small, most of them below FP16's normal numbers. The scaler multiplies the loss, divides the gradients before the update, skips the update when one of them is infinite and then halves the scale. It cannot help with an overflow in the forward pass."
#
# **What does mixed precision save?** "Under autocast nothing that stays: weights, gradients and Adam's state are FP32. Activations shrink by a third or so, but 16-bit copies of all matrices come on top; at small batches the peak rises. It is for speed. Pure BF16 halves memory, and its price is updates that are rounded away."
#
# ## The next question
#
# Activations are what autocast shrinks, and not by much. Can one do without them? That is `03_checkpointing`. The sections below go deeper into precision; they can wait.

# %% [markdown] lang="zh"
# ## 面试时这样说
#
# **FP16 和 BF16 有什么区别，训练选哪个？** “都是 16 位。FP16 是 5 位指数、10 位尾数，更精确，但上到 65504、下到大约 6e-8 就到头了。BF16 是 8 位和 7 位，范围和 FP32 一样，有效数字只有两三位。Ampere 及以后的卡我用 BF16；V100、T4 用 FP16 加损失缩放。判断时看计算能力，因为 PyTorch 在老卡上也会靠模拟说支持 BF16。”
#
# **损失缩放器做什么？** “反向传播里的梯度很小，大多比 FP16 的规格化数还小。缩放器先把损失放大，更新之前再把梯度除回来；梯度里出现无穷大，就跳过这次更新，再把缩放减半。前向里的溢出它管不了。”
#
# **混合精度省什么？** “autocast 不省任何常驻的东西：权重、梯度和 Adam 的状态都是 FP32。激活值能少三分之一左右，可是又多出所有矩阵的 16 位副本；batch 小的时候峰值反而升高。它主要是为了快。真正让显存减半的是纯 BF16，代价是小的更新会被舍掉。”
#
# ## 下一个问题
#
# autocast 能缩小的只有激活值，还缩得不多。能不能干脆不留激活值？答案在 `03_checkpointing`。下面几节把精度讲得更深，以后再看也行。

# %% [markdown] lang="en"
# ## Deeper: when autocast takes more memory
#
# The 7B's copies can be watched in a toy: eight linear layers of 256 × 256. A batch of 4 rows leaves little behind in FP32, and under autocast the same and the copies. How many **times** as much is that?

# %% [markdown] lang="zh"
# ## 深入：autocast 什么时候反而更占显存
#
# 7B 的那些副本，用一个玩具模型就能看清：八个 256 × 256 的线性层。batch 只有 4 行时，FP32 留下的很少；autocast 除了这些，还要留下副本。一共是**几倍**？

# %%
times_as_much = ...
### BEGIN SOLUTION
times_as_much = 1
### END SOLUTION
predict("precision.times_as_much", times_as_much, unit="x")

# %%
from course_lib.comparisons import growth, growth_alt_text
from course_lib.probe import probe


def left_behind(batch, autocast, parts=1, regions=1):
    """Bytes kept for one backward pass when the batch goes in equal parts, in one region or in one for each part."""
    with torch.device("meta"):
        net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        rows = [torch.randn(batch // parts, 256) for _ in range(parts)]
    with probe(net) as measured:
        losses = []
        for region in [rows] if regions == 1 else [[part] for part in rows]:
            with torch.autocast("cuda", dtype=torch.float16, enabled=autocast):  # leaving it empties the cache
                losses += [net(part).sum() for part in region]
        torch.stack(losses).sum().backward()
    return measured.trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS]


batches = (4, 64, 256, 1024, 4096)
curves = {name: {n: left_behind(n, autocast) for n in batches} for name, autocast in (("FP32", False), ("autocast", True))}
for n in batches:
    plain, cast = curves["FP32"][n], curves["autocast"][n]
    print(f"batch {n:5}: FP32 {plain:11,} B, autocast {cast:11,} B, x {cast / plain:.2f}")
print(f"copies of the eight matrices: {8 * 256 * 256 * 2:,} B")
for regions in (1, 2):
    print(f"batch 64 in two parts, regions {regions}: {left_behind(64, True, parts=2, regions=regions):,} B")
settle("precision.times_as_much", curves["autocast"][4] / curves["FP32"][4], unit="x")
show(growth(curves, "rows in the batch", "left by the forward pass"), growth_alt_text(curves, "rows"))

# %% [markdown] lang="en"
# The copies cost one megabyte, whatever the batch. Somewhere between 256 and 1024 rows the saving outgrows them.
#
# Autocast keeps a **cache** of cast weights: a weight that is used twice within one region is cast once. Leaving the outermost region empties it. So two micro-batches in regions of their own, both waiting for one backward pass, hold two sets of copies (the last two lines). Call `backward()` for each micro-batch, and the copies of the first are gone before the second begins.
#
# ## Deeper: which operators autocast casts
#
# Lists decide, and CUDA's list is another than the CPU's. Give each operator 16-bit input and look at what comes out. The dry run follows CUDA's list; the CPU column is this machine's own.

# %% [markdown] lang="zh"
# 不管 batch 多大，副本总是一兆字节。行数在 256 到 1024 之间的某处，省下的才开始比副本多。
#
# autocast 有一个**缓存**：同一个区域里用到两次的权重，只转换一次。退出最外层区域，缓存就清空。所以，两个微批各进各的区域、再一起反向，就得同时留着两份副本（看最后两行）。每个微批都单独 `backward()`，第一份就会在第二份出现之前释放。
#
# ## 深入：autocast 转换哪些算子
#
# 由名单决定，而且 CUDA 的名单和 CPU 的不一样。给每个算子喂 16 位的输入，看看出来的是什么。空跑按 CUDA 的名单走；CPU 那一列是这台机器自己的结果。

# %%
from torch.nn import functional as F

from course_lib.dryrun import on_meta

OPERATORS = {
    "linear": lambda x: F.linear(x, x[0]),
    "matmul": lambda x: x @ x,
    "conv1d": lambda x: F.conv1d(x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x[0], torch.zeros(16, dtype=torch.long, device=x.device)),
    "exp": lambda x: x.exp(),
    "sum": lambda x: x.sum(),
    "gelu": F.gelu,
    "add": lambda x: x + x,
    "cat with FP32": lambda x: torch.cat([x, x.float()]),
}


def result_type(name, device, start):
    x = torch.ones(16, 16, 16, dtype=start, device=device)  # [B, T, H]
    with torch.autocast("cuda" if device == "meta" else "cpu", dtype=torch.bfloat16):
        return str(OPERATORS[name](x).dtype).removeprefix("torch.")


print(f"{'':15}{'CUDA: from bf16':>17}{'from fp32':>11}{'CPU: from bf16':>18}{'from fp32':>11}")
types = {}
for name in OPERATORS:
    with on_meta("cuda"):
        cuda = [result_type(name, "meta", start) for start in (torch.bfloat16, torch.float32)]
    cpu = [result_type(name, "cpu", start) for start in (torch.bfloat16, torch.float32)]
    types[name] = {"CUDA": cuda[0], "CPU": cpu[0]}
    print(f"{name:15}{cuda[0]:>17}{cuda[1]:>11}{cpu[0]:>18}{cpu[1]:>11}")

expected = {"matmul": "bfloat16", "conv1d": "bfloat16", "layer_norm": "float32", "softmax": "float32",
            "cross_entropy": "float32"}
judge("C8", {f"{name}, {device}": types[name][device] == dtype
             for device in ("CUDA", "CPU") for name, dtype in expected.items()})

# %% [markdown] lang="en"
# Products go down to 16 bits; what sums up many numbers or stretches them (norms, softmax, exponentials, losses) goes up to FP32; the rest takes what it gets, and where both types meet FP32 wins. On the CPU layer norm and softmax are on no list. A module that calls its own norm in plain arithmetic is not protected on a card either: autocast knows operators, not intentions.
#
# ## Deeper: updates that vanish
#
# Pure BF16 halves all bills. Its price is in the weights themselves: an update smaller than half the gap to the next number is rounded away. Fine-tune the small GPT further with a small learning rate, in FP32, under autocast, and in pure BF16:

# %% [markdown] lang="zh"
# 乘法类的降到 16 位；要把许多数加起来、或者把数拉得很开的（归一化、softmax、指数、损失）升到 FP32；其余的来什么算什么，两种类型碰到一起就听 FP32 的。在 CPU 上，层归一化和 softmax 不在任何名单里。即使在显卡上，如果哪个模块用普通算术自己写归一化，也得不到保护：autocast 认识算子，不认识意图。
#
# ## 深入：消失的更新
#
# 纯 BF16 让每笔账都减半，代价落在权重自己身上：更新如果不到相邻两数间隔的一半，就被舍掉了。用很小的学习率继续微调那个小 GPT，分别用 FP32、autocast 和纯 BF16：

# %%
tokens, targets = draw_batch(8, 32, draw)


def fine_tune(mode, learning_rate, steps):
    """Losses on one batch, and the share of weights that are no longer what they were."""
    tuned = GPT(model.config)
    tuned.load_state_dict(trained)
    if mode == "pure BF16":
        tuned.bfloat16()
    before = [each.detach().clone() for each in tuned.parameters()]
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=learning_rate, weight_decay=0.0)
    losses = []
    for _step in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
            loss = next_token_loss(tuned(tokens).float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    changed = sum((now != old).sum().item() for now, old in zip(tuned.parameters(), before, strict=True))
    return losses, changed / sum(each.numel() for each in before)


for learning_rate in (1e-3, 1e-4, 1e-5):
    print(f"learning rate {learning_rate:.0e}: one update in pure BF16 moves "
          f"{fine_tune('pure BF16', learning_rate, 1)[1]:.0%} of the weights")
fell = {}
for mode in ("FP32", "autocast", "pure BF16"):
    losses, moved = fine_tune(mode, 1e-5, 20)
    fell[mode] = losses[0] - losses[-1]
    print(f"20 updates at 1e-05, {mode:10}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {moved:.0%} of the weights moved")
judge("C20", {f"BF16: {mode}, rate 1e-5": fell[mode] > 0.9 * fell["FP32"] for mode in ("autocast", "pure BF16")})

# %% [markdown] lang="en"
# Adam moves every weight by about the learning rate. BF16 stores a weight near 0.02 in steps of 0.00012, and the weight 1.0 of a norm in steps of 0.008: at 1e-5 only weights that are nearly zero can move, and repeating does not help, since each update is rounded on its own. Hence three ways out: FP32 weights under autocast, master weights (the recipe `master-bf16`), or adapters in FP32 over a frozen BF16 base, which is LoRA. Optimizers that round at random, or keep the rounding error, are a fourth.
#
# **Task.** How large is the step at a given number? Write `spacing(value, mantissa_bits)`: from a positive normal number to the next larger one.

# %% [markdown] lang="zh"
# Adam 每次把每个权重挪动大约一个学习率那么远。BF16 在 0.02 附近，相邻两数相差 0.00012；归一化层的权重是 1.0，相邻两数相差 0.008。学习率 1e-5 时，只有几乎为 0 的权重挪得动；多走几步也没用，因为每次更新都单独舍入。出路有三条：autocast 配 FP32 权重；主权重（配方 `master-bf16`）；或者冻结 BF16 底座、在上面训练 FP32 的适配器，也就是 LoRA。第四条是随机舍入、或者把舍入误差记下来的优化器。
#
# **任务。** 某个数旁边的间隔有多大？写出 `spacing(value, mantissa_bits)`：从一个正的规格化数，到比它大的下一个数。

# %%
import math


def spacing(value, mantissa_bits):
    """The gap between a positive normal number and the next larger one of its type."""
    ...
    ### BEGIN SOLUTION
    return 2.0 ** (math.floor(math.log2(value)) - mantissa_bits)
    ### END SOLUTION


check("precision.spacing", spacing)

# %% [markdown] lang="en"
# ## Deeper: TF32, which saves no byte
#
# Since Ampere, tensor cores can multiply FP32 matrices faster if their mantissas are cut to 10 bits on the way in: **TF32**. It is no type of a tensor, memory stays as it is, and the range is FP32's. For matrix products PyTorch leaves it off (`"highest"`) until you ask: `torch.set_float32_matmul_precision("high")`. What it costs can be seen on any machine, by rounding the factors of one product:

# %% [markdown] lang="zh"
# ## 深入：一个字节也不省的 TF32
#
# 从 Ampere 起，Tensor Core 可以更快地算 FP32 矩阵乘，条件是进去的时候把尾数截到 10 位，这就是 **TF32**。它不是张量的类型，显存一点不变，范围还是 FP32 的。做矩阵乘时 PyTorch 默认不用它（`"highest"`），要自己打开：`torch.set_float32_matmul_precision("high")`。它有多不准，在哪台机器上都看得出来：把一次乘法的两个因子舍入一下就行。

# %%
def to_tf32(x):
    """FP32 numbers rounded to 10 bits of mantissa, to the nearest."""
    return ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


a, b = torch.randn(64, 1024), torch.randn(1024, 64)
truth = a.double() @ b.double()
roundings = {"FP32": lambda x: x, "TF32": to_tf32, "FP16": lambda x: x.half(), "BF16": lambda x: x.bfloat16()}
off = {}
for name, rounded in roundings.items():
    product = rounded(a).double() @ rounded(b).double()  # sums without further rounding
    off[name] = ((product - truth).norm() / truth.norm()).item()
    print(f"{name}: factors of {rounded(a).element_size()} bytes, product off by {off[name]:.1e}")
print("this machine's setting for matrix products:", torch.get_float32_matmul_precision())

# %% [markdown] lang="en"
# TF32 is as exact as FP16, with FP32's range; BF16 is eight times coarser. When somebody reports that autocast is hardly faster than FP32, ask first whether their FP32 was TF32.
#
# ## Deeper: why autocast can be slower
#
# Count the operators of a step. Each of them, mere views aside, is at least one kernel that a card has to start. The model is small, its operators are executed on meta with CUDA's lists:

# %% [markdown] lang="zh"
# TF32 和 FP16 一样准，范围却是 FP32 的；BF16 要粗八倍。有人说 autocast 比 FP32 快不了多少，先问一句：他的 FP32 是不是其实是 TF32。
#
# ## 深入：autocast 为什么会更慢
#
# 数一数一步里有多少个算子。除了 view 这类只换形状的，每个算子至少要让显卡启动一次内核。模型很小，按 CUDA 的名单在 meta 上执行：

# %%
from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode


class Count(TorchDispatchMode):
    """Counts every operator that PyTorch runs, in the backward pass, too."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


calls = {}
for name, autocast in (("FP32", False), ("autocast", True)):
    with torch.device("meta"):
        counted, numbers = GPT(model.config), torch.zeros(8, 32, dtype=torch.long)
    with on_meta("cuda"), Count() as count:
        with torch.autocast("cuda", dtype=torch.float16, enabled=autocast):
            loss = next_token_loss(counted(numbers), numbers)
        loss.backward()
    calls[name] = count.calls
    products = sum(count.calls[each] for each in ("mm", "addmm", "bmm"))
    print(f"{name:9}{count.calls.total():5} operators, {products} of them products of matrices, "
          f"{count.calls['_to_copy']} casts")
    print("         most often:", ", ".join(f"{operator} {times}" for operator, times in count.calls.most_common(5)))

if torch.cuda.is_available():
    from torch.utils.benchmark import Timer

    for size in (256, 1024, 4096):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(size, size, device="cuda", dtype=dtype)
            seconds = Timer("x @ x", globals={"x": x}).blocked_autorange(min_run_time=0.2).median
            print(f"[{size}, {size}] squared in {dtype}: {1e6 * seconds:.1f} us")
else:
    print("\nNo card here, and no times of one are recorded yet.")

published = {"ResNet-20": (15, 21), "SCN, A100": (5.44, 9.06)}  # minutes, seconds: FP32, mixed precision
stored = {name: sum(trace.static_bytes.values()) <= 0.501 * sum(traces["fp32"].static_bytes.values())
          for name, trace in traces.items()}
judge("C4", {"memory, bf16": stored["bf16"], "memory, amp-fp16": stored["amp-fp16"]}
      | {f"time, {name}": plain / mixed >= 2 for name, (plain, mixed) in published.items()})

# %% [markdown] lang="en"
# The same products, and casts on top, a fifth more operators. Each cast moves bytes and must be started. Where products are large, they win back much more than that; where the card waits for the next kernel anyway (small batch, small layers), casts only add to the queue. A profile shows it at once: sorted by calls, as in the second line of each, `_to_copy` comes right after the views, which start no kernel; on a card `torch.profiler` gives the same list with the time that each took. Remedies: a larger batch, fused operators, or no autocast around the part that is made of small ones.
#
# ## Deeper: what goes wrong, and what it says
#
# Four classics, each in a few lines: a scaler over FP16 weights, an optimizer that the loss does not reach, `model.half()` with Adam, and a region for the wrong device.

# %% [markdown] lang="zh"
# 矩阵乘一次没多，类型转换却多出五十个，算子总数多了五分之一。每个转换都要搬字节、都要启动一次。矩阵乘够大，省下的时间远超这些；可要是显卡本来就在等下一个内核（batch 小、层也小），转换只会让队伍更长。做个 profile 一眼就看得出：按调用次数排序（每组的第二行），`_to_copy` 紧跟在不启动内核的 view 之后；在显卡上，`torch.profiler` 给出同样的清单，还带每一项的耗时。办法：加大 batch、算子融合，或者别给全是小算子的部分套 autocast。
#
# ## 深入：会出什么错，报错怎么说
#
# 四个经典错误，每个几行：给 FP16 权重用缩放器；损失根本传不到优化器管的参数；`model.half()` 配 Adam；autocast 的设备写错。

# %%
import warnings


def attempt(what, do):
    try:
        print(f"{what}: {do()}")
    except (ValueError, AssertionError) as error:
        print(f"{what}: {type(error).__name__}: {error}")


def one_scaled_step(layer, trained_layer):
    optimizer, scaler = torch.optim.SGD(trained_layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(layer(torch.ones(2, 4, dtype=layer.weight.dtype)).sum()).backward()
    scaler.step(optimizer)


def half_with_adam(dtype):
    weight = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    weight.grad = torch.tensor([1e-5, 1e-4, 1e-3, 0.0], dtype=dtype)
    torch.optim.AdamW([weight], lr=1e-5).step()
    return weight.tolist()


def region_for(device):
    with torch.autocast(device, dtype=torch.bfloat16):
        return torch.nn.Linear(4, 4)(torch.ones(2, 4)).dtype


linear = torch.nn.Linear
attempt("FP16 weights and a scaler", lambda: one_scaled_step(*[linear(4, 4).half()] * 2))
attempt("a layer that the loss does not reach", lambda: one_scaled_step(linear(4, 4), linear(4, 4)))
attempt("model.half() with Adam", lambda: half_with_adam(torch.float16))
attempt("the same in FP32", lambda: half_with_adam(torch.float32))
attempt('torch.autocast("cpu") on the CPU', lambda: region_for("cpu"))
with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")  # without a card PyTorch warns; with one it says nothing
    attempt('torch.autocast("cuda") on the CPU', lambda: region_for("cuda"))

with warnings.catch_warnings(record=True) as complaints:
    warnings.simplefilter("always")
    torch.cuda.amp.GradScaler()
    old = [str(each.message) for each in complaints if each.category is FutureWarning]
    complaints.clear()
    defaults = torch.amp.GradScaler("cpu")
    new = [str(each.message) for each in complaints]
print(*old)
print(f"begins at {defaults.get_scale():.0f}, x {defaults.get_growth_factor()} after {defaults.get_growth_interval()} "
      f"good steps, x {defaults.get_backoff_factor()} after an overflow")
judge("C7", {"torch.cuda.amp.GradScaler()": not old, 'torch.amp.GradScaler("cuda")': not new})

fp16_reached_inf = any(math.isinf(weight) for weight in half_with_adam(torch.float16))
more_casts = calls["autocast"].total() > calls["FP32"].total()
judge("C16", {"NaN in FP16: overflow": FP16.stored(66246.39) == math.inf, "NaN in FP16: Adam's eps underflows":
              fp16_reached_inf and FP16.stored(1e-8) == 0, "autocast: more operators": more_casts})

# %% [markdown] lang="en"
# - **`Attempting to unscale FP16 gradients`** means that *trained* weights are FP16. Load the model in FP32, or keep at least what is trained in FP32 ([peft](https://github.com/huggingface/peft/issues/341)).
# - **`No inf checks were recorded`** means that no parameter of this optimizer has a gradient. Commenting the check out only hides that nothing is trained ([seen there](https://github.com/SheldonTsui/GOF_NeurIPS2021/issues/2)).
# - **`model.half()`** is not mixed precision: Adam divides by $\sqrt{v} + \epsilon$, and in FP16 both are 0. Somebody did that to escape an out-of-memory error, and the loss was 0 after one batch ([TinyLlama](https://github.com/jzhang38/TinyLlama/issues/32)). `model.bfloat16()` is another thing: as many bits, another range.
# - **A region for another device** does nothing at all. Take the type from the model's device: `torch.autocast(torch.device(device).type, ...)`.
#
# And one that raises nothing: a finite loss with a `nan` gradient norm is an overflow in the backward pass. Look at the scale; if it stays above 1, wait, the scaler is searching.
#
# Precision decides how large each number is. How many numbers must be kept is the next question: `03_checkpointing`.

# %% [markdown] lang="zh"
# - **`Attempting to unscale FP16 gradients`**：*要训练的*权重是 FP16。模型用 FP32 加载，或者至少让要训练的那部分保持 FP32（[peft](https://github.com/huggingface/peft/issues/341)）。
# - **`No inf checks were recorded`**：这个优化器的参数一个梯度也没有。把检查注释掉，只会掩盖什么都没训的事实（[有人这么干过](https://github.com/SheldonTsui/GOF_NeurIPS2021/issues/2)）。
# - **`model.half()`** 不是混合精度：Adam 要除以 $\sqrt{v} + \epsilon$，在 FP16 里两项都是 0。有人为了躲开显存不足这样做，一个 batch 之后 loss 就成了 0（[TinyLlama](https://github.com/jzhang38/TinyLlama/issues/32)）。`model.bfloat16()` 是另一回事：位数一样，范围不同。
# - **设备写错的 autocast** 什么也不做。设备名要从模型所在的设备取：`torch.autocast(torch.device(device).type, ...)`。
#
# 还有一种什么都不报：loss 正常，梯度范数是 `nan`，这是反向传播里溢出了。看看缩放是多少；只要还大于 1，就等一等，缩放器正在找位置。
#
# 精度决定每个数有多大。要留多少个数，是下一个问题：`03_checkpointing`。
