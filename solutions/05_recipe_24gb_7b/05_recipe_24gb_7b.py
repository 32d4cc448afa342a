# %% [markdown] lang="en"
# # 05 · From 120 GB to 21: a 7B on a 24 GB card
#
# *The core takes 40 minutes, the deeper sections another 60. Before it: `01_ledger`; the cuts themselves are explained in 02 to 04. Afterwards you can say of any model and card which cuts are needed, what each takes off, and what it costs.*
#
# ## Four bits, an adapter, and no room
#
# Somebody fine-tunes a 7B model on an RTX 3090, in the thriftiest way there is: the weights in 4 bits, LoRA adapters of rank 8. It runs out of memory ([the report](https://github.com/Lightning-AI/litgpt/issues/459)):
#
# | the message says | |
# |---|---|
# | total capacity | 23.69 GiB |
# | allocated by PyTorch | 22.22 GiB |
# | reserved but unallocated | 1.04 GiB |
# | tried to allocate | 86.00 MiB |
#
# In 4 bits the model has less than 4 GiB, the adapters a few megabytes. The two cuts that everybody recommends had been made, and the card was full all the same. So a list of tricks is not enough. **Which cut takes which bytes, and what is left when all of them are made?**

# %% [markdown] lang="zh"
# # 05 · 从 120 GB 到 21 GB：24 GB 的卡微调 7B
#
# *主线 40 分钟，深入部分再加 60 分钟。先学 `01_ledger`；每一刀本身的原理在 02 到 04 课。学完以后，给你任意一个模型和一块卡，你能说出该砍哪几刀、每刀省多少、代价是什么。*
#
# ## 4 比特，加适配器，还是装不下
#
# 有人在 RTX 3090 上微调 7B 模型，用的是最省的办法：权重量化到 4 比特，LoRA 秩 8。结果还是显存不足（[原始报告](https://github.com/Lightning-AI/litgpt/issues/459)）：
#
# | 报错里的数字 | |
# |---|---|
# | 总容量 | 23.69 GiB |
# | PyTorch 已分配 | 22.22 GiB |
# | 已预留但没分配出去 | 1.04 GiB |
# | 想再分配 | 86.00 MiB |
#
# 4 比特的模型不到 4 GiB，适配器只有几 MB。人人推荐的两刀都砍了，卡还是满的。可见光背一串技巧不够用。**每一刀砍掉的是哪些字节？全砍完以后，还剩下什么？**

# %% tags=["setup"]
LANGUAGE = "en"

# %% [markdown] lang="en"
# ## Predict
#
# The job: fine-tune Llama-2-7B, 32 sequences of 2048 tokens for each update of the weights, on an RTX 3090. The usual estimate of 120 GB (01) is for a sequence or two at a time; all 32 at once, in FP32, is where we start, and make four cuts:
#
# 1. **accumulate** 8 micro-batches of 4,
# 2. **pure BF16** in place of FP32,
# 3. **LoRA** of rank 16 on the four attention matrices,
# 4. **checkpointing** of every block.
#
# Two guesses, in GB of tensors at the peak: what is left after all four, and how much does the third one, LoRA, take off?

# %% [markdown] lang="zh"
# ## 预测
#
# 任务：在 RTX 3090 上微调 Llama-2-7B，每更新一次权重用 32 条、每条 2048 个 token。常说的 120 GB（01 课）只是一次一两条的情形；我们从更狠的起点出发：权重全部 FP32，32 条一次算完。然后砍四刀：
#
# 1. **梯度累积**：8 个微批，每个 4 条；
# 2. **纯 BF16** 代替 FP32；
# 3. **LoRA**：秩 16，加在注意力的四个矩阵上；
# 4. **梯度检查点**：每一层都设。
#
# 猜两个数，都按峰值时张量占的 GB 算：四刀之后还剩多少？其中第三刀 LoRA 省下多少？

# %%
from course_lib.journal import predict, settle

peak_gb = ...  # GB, after all four cuts
lora_saves_gb = ...  # GB, what the third cut takes off
### BEGIN SOLUTION
peak_gb = 21
lora_saves_gb = 50
### END SOLUTION
predict("recipe.peak_gb", peak_gb, unit="GB")
predict("recipe.lora_saves_gb", lora_saves_gb, unit="GB")

# %% [markdown] lang="en"
# ## Cut by cut
#
# The ledger writes a bill after each cut. The price stands beside it, as far as it can be counted: floating-point operations of the whole update, from PyTorch's own counter, divided by parameters and tokens. (Full training has 6 of them in the matrix products with weights, 2 forward and 4 backward, and attention's own products besides.)

# %% [markdown] lang="zh"
# ## 一刀一刀地砍
#
# 每砍一刀，账本重写一份账单。旁边是能数得出来的那部分代价：整次更新的浮点运算次数，由 PyTorch 自带的计数器数出，再除以参数量和 token 数。（全量训练里，和权重做的乘法是 6：前向 2，反向 4；再加上注意力自己的乘法。）

# %%
from dataclasses import replace

from course_lib import ledger
from course_lib.cards import find_card
from course_lib.comparisons import comparison_alt_text, side_by_side
from course_lib.figures import show
from course_lib.flops import step_flops
from course_lib.hf_config import read_config, read_model
from course_lib.plots import alt_text, waterfall
from course_lib.recipe import Recipe
from course_lib.units import GB, GIB

llama, config, rtx_3090 = read_model("llama-7b"), read_config("llama-7b"), find_card("RTX 3090")
recipe = Recipe(precision="fp32", batch=32, seq=2048)
recipes = {"FP32, 32 at once": recipe}
for name, change in {
    "accumulate 8×4": {"batch": 4, "accum": 8},
    "pure BF16": {"precision": "bf16"},
    "LoRA": {"lora_rank": 16},
    "checkpointing": {"checkpoint": "block"},
}.items():
    recipe = recipes[name] = replace(recipe, **change)
bills = {name: ledger.predict(llama, each) for name, each in recipes.items()}

print(f"{'':18}{'peak, GB':>10}{'cut':>9}{'operations':>12}")
bars, before = [], 0
for name, bill in bills.items():
    price = step_flops(config, recipes[name]) / llama.params / (32 * 2048)
    print(f"{name:18}{bill.peak_bytes / GB:10.1f}{(bill.peak_bytes - before) / GB if before else 0:9.1f}{price:12.2f}")
    bars.append((name, bill.peak_bytes - before))
    before = bill.peak_bytes

print()
settle("recipe.peak_gb", before / GB, unit="GB")
settle("recipe.lora_saves_gb", -bars[3][1] / GB, unit="GB")
show(waterfall(bars, card=rtx_3090, total="left"), alt_text(bars))
some = dict(list(bills.items())[1:])
show(side_by_side(some, [rtx_3090]), comparison_alt_text(some))

# %% [markdown] lang="en"
# Each cut has accounts of its own. (The pictures are in GiB, as cards are: 1 GiB is 1.074 GB. The second leaves the first bar out, so that the others can be seen.)
#
# - **Accumulation** takes activations, by the number of sequences at once, and nothing else. From now on gradients have to stay between micro-batches.
# - **Pure BF16** halves weights, gradients and optimizer state, and most activations.
# - **LoRA** takes gradients and optimizer state. It *adds* activations, a seventh (50.2 to 57.1 GB): each adapter keeps its input once more, in FP32, since peft's adapters are, and after a dropout of its own, which `Recipe` assumes as common recipes have it. Its operations fall by three tenths, since frozen weights need no gradients.
# - **Checkpointing** takes the activations, all but one boundary for each block. It costs most of one more forward pass, 1.67, somewhat less than LoRA had saved, 1.96: 6.15 operations in all, against 6.44 of full training.
#
# Prices that no counter shows: pure BF16 rounds small updates away (02), LoRA can only learn a change of low rank, accumulation of small micro-batches keeps the card less busy (04).
#
# ## The recipe as it is told
#
# The recipe is often told with these figures, and an end of 21 GB:
#
# | cut | effect as told |
# |---|---|
# | BF16 mixed precision | weights, gradients, optimizer halve: 112 to 56 GB |
# | LoRA | saves another 50 GB or so |
# | checkpointing | saves 70 % of activations: 20 to 6 GB |
# | accumulation × 8 | batch 32 becomes 4 at a time |
#
# Add them up before you run the cell: does 21 come out?

# %% [markdown] lang="zh"
# 每一刀砍的账目都不一样。（图里用的是 GiB，和显卡一样：1 GiB 等于 1.074 GB。第二张图略去了第一根，不然别的看不清。）
#
# - **梯度累积**砍激活值：同时算的条数少到几分之一，激活值就少到几分之一，别的一概不动。而且从此在微批之间，梯度必须一直留着。
# - **纯 BF16** 让权重、梯度、优化器状态减半，大部分激活值也减半。
# - **LoRA** 砍梯度和优化器状态，但激活值反而*多了*七分之一（50.2 到 57.1 GB）：每个适配器都要把输入再留一份，而且是 FP32 的（peft 的适配器默认 FP32），还各自做过 dropout（`Recipe` 按常见配方假定有）。运算量少了三成，因为冻结的权重不用算梯度。
# - **检查点**砍激活值，每层只留一个边界。代价是多算大半遍前向（1.67），比 LoRA 省下的（1.96）略少：一共 6.15，而全量训练是 6.44。
#
# 还有计数器数不出来的代价：纯 BF16 会把小的更新舍掉（02 课），LoRA 只学得到低秩的改变，微批太小则显卡吃不饱（04 课）。
#
# ## 常见的说法
#
# 这份配方常常配着下面这些数字流传，最后得出 21 GB：
#
# | 手段 | 据说的效果 |
# |---|---|
# | BF16 混合精度 | 权重、梯度、优化器全减半：112 变 56 GB |
# | LoRA | 再省大约 50 GB |
# | 检查点 | 激活值省 70%：20 变 6 GB |
# | 累积 × 8 | batch 32 变成一次 4 条 |
#
# 运行之前先自己加一加：加得出 21 吗？

# %%
from course_lib.accounts import Account
from course_lib.article import tell
from course_lib.device import device_range

as_told = 56 - 50 + 6
lora_removes = 14 + 28  # gradients and Adam's moments of 7e9 parameters in BF16
adapters = 16 * llama.lora_params(16, ("attention",)) / GB  # FP32: weight 4, gradient 4, Adam 8 bytes
mended = 56 - lora_removes + adapters + 6
stays = bills["checkpointing"].static_bytes
low, high = (size / GB for size in device_range(before, stays[Account.WEIGHTS] + stays[Account.OPTIMIZER]))
print(f"as told        56 - 50 + 6       = {as_told} GB: less than the frozen weights, 14 GB")
print(f"LoRA removes   14 + 28           = {lora_removes} GB, not 50")
print(f"mended         56 - 42 + {adapters:.1f} + 6 = {mended:.1f} GB of tensors, and a CUDA context of 0.3 to 0.9 GB")
print(f"the ledger     4 x 2048 tokens   = {before / GB:.1f} GB of tensors, {low:.1f} to {high:.1f} GB in use on the card")

tell("C14")

# %% [markdown] lang="en"
# So 21 GB is a figure that this recipe can really have on a card, with micro-batches of 4 × 2048. The way there, as told, does not lead to it: in this sum LoRA cannot remove 50 GB, where gradients and optimizer state have 42 together, and 14 GB of frozen weights stay whatever one does to the rest. And "mixed precision" halves none of it: only pure BF16 does.
#
# ## Measure: the whole recipe
#
# So far the ledger has spoken. Now the real code, transformers' Llama and peft's adapters, one update on the meta device. (Two micro-batches, in place of eight: from the second on they are all alike.)

# %% [markdown] lang="zh"
# 可见 21 GB 这个数本身没错：微批 4 × 2048 时，卡上确实可能显示这么多。错的是一路推过来的过程：在这笔加法里，梯度加优化器状态总共才 42 GB，LoRA 变不出 50；而 14 GB 的冻结权重，别的怎么砍它都在。还有，“混合精度”一样也没减半，减半的是纯 BF16。
#
# ## 实测：整份配方跑一遍
#
# 到这里都是账本说的。现在换真代码上场：transformers 的 Llama 加 peft 的适配器，在 meta 设备上做一次更新。（只跑两个微批，不跑八个：从第二个起都一样。）

# %%
from course_lib.dryrun import dry_run_config
from course_lib.plots import timeline
from course_lib.reconcile import reconcile

two = replace(recipes["checkpointing"], accum=2)
trace = dry_run_config(config, two)
print(f"dry run {trace.peak_bytes / GB:.2f} GB, ledger {ledger.predict(llama, two).peak_bytes / GB:.2f} GB; "
      f"ledger with 8 micro-batches {before / GB:.2f} GB")
show(timeline(trace, card=rtx_3090), alt_text(trace))
reconcile(ledger.predict(llama, two), trace)

# %% [markdown] lang="en"
# What is left? The frozen weights, 12.6 GiB, which nothing has touched. Above them each micro-batch draws the same hill: boundaries pile up block by block; a spike at the top, where the logits of 4 × 2048 tokens and 32,000 words meet their loss; then, on the way down, a tooth for each block that is computed again. The adapters, for whose sake all this is done, cannot be seen.
#
# That is also the answer to the opening. There the weights had been cut to 4 bits, gradients and optimizer state to nothing; the one account that was *not* cut was activations, with micro-batches of 4 and no checkpointing:

# %% [markdown] lang="zh"
# 剩下的是什么？是 12.6 GiB 的冻结权重，前面几刀谁都没碰它。它上面，每个微批都画出同样的一座小山：一层层堆起来的是边界；山顶那根尖刺，是 4 × 2048 个 token、32,000 个词的 logits 碰上损失函数；下山路上的一排锯齿，是逐层重算。适配器呢？这一切都是为了它，图上却根本看不见。
#
# 开头的谜也解开了。那次训练里，权重砍到了 4 比特，梯度和优化器状态几乎砍没了，唯独一笔账*没砍*：激活值。微批是 4 条，没有设检查点：

# %%
qlora_run = Recipe(quant="nf4", double_quant=True, lora_rank=8, lora_targets="q_proj,v_proj", batch=4)
seq = next(n for n in range(64, 4096, 4) if ledger.predict(llama, replace(qlora_run, seq=n)).peak_bytes > 22.22 * GIB)
runs = {
    f"4 x {seq}, fitted": replace(qlora_run, seq=seq),
    f"1 x {seq}": replace(qlora_run, seq=seq, batch=1),
    f"4 x {seq}, checkpointing": replace(qlora_run, seq=seq, checkpoint="block"),
}
opening = {name: ledger.predict(llama, each) for name, each in runs.items()}
for name, bill in opening.items():
    print(f"{name:26} {bill.peak_bytes / GIB:6.2f} GiB, of which weights {bill.at_peak[Account.WEIGHTS] / GIB:.2f} "
          f"and activations {bill.at_peak[Account.ACTIVATIONS] / GIB:.2f}")

# %% [markdown] lang="en"
# (How long the sequences were the report does not say; the ledger says at which length such a run reaches its 22.22 GiB. The 86 MiB that were refused are one matrix of the MLP in 16 bits, 4096 × 11008 × 2 bytes: dequantised to be multiplied.) The answer in the thread was a smaller micro-batch, and it worked. A cut only helps if it hits the account that is large *now*.
#
# ## LoRA on one screen
#
# What is an adapter? Beside a frozen matrix $W$ runs a narrow path: down to $r$ numbers and up again, $y = Wx + \frac{\alpha}{r} B A x$. $B$ starts as zero, so at first nothing changes. Is that really all? Build it, copy the same $A$ and $B$ into peft's adapters, and train both:

# %% [markdown] lang="zh"
# （报告里没写序列多长；账本能算出，多长时这样的训练正好占到 22.22 GiB。要不到的那 86 MiB，正是 MLP 的一个 16 位矩阵，4096 × 11008 × 2 字节：要先还原才能相乘。）帖子里的答复是调小微批，果然就好了。一刀管不管用，要看它砍中的是不是*眼下*最大的那笔账。
#
# ## 一屏写完 LoRA
#
# 适配器是什么？在冻结的矩阵 $W$ 旁边加一条窄路：先降到 $r$ 个数，再升回去，$y = Wx + \frac{\alpha}{r} B A x$。$B$ 从零开始，所以起初什么也没变。真的就这么简单？自己写一个，把同样的 $A$、$B$ 拷进 peft 的适配器，两边一起训练：

# %%
import copy
import warnings

import peft
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from course_lib.finetune import course_text, finetune


class LoRA(nn.Module):
    """A frozen linear layer, and beside it a path of ``r`` numbers that is trained."""

    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)  # W [out, in]
        self.A = nn.Parameter(torch.empty(r, linear.in_features))  # random
        self.B = nn.Parameter(torch.zeros(linear.out_features, r))  # zero: at first, W alone speaks
        nn.init.kaiming_uniform_(self.A, a=5**0.5)
        self.scale = alpha / r

    def forward(self, x):  # [B, T, in] -> [B, T, out]
        return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)


def add_lora(model, targets, r, alpha):
    """Freeze ``model``, and put an adapter beside every linear layer whose name is in ``targets``; in place."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name in targets:
                setattr(parent, name, LoRA(child, r, alpha))
    return model


def with_peft(model, targets, r, alpha):
    lora = peft.LoraConfig(r=r, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that will go
        return peft.get_peft_model(model, lora)


torch.manual_seed(0)
sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 256}
base = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.1))  # random weights
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# %%
mine = add_lora(copy.deepcopy(base), targets, r=16, alpha=32)
theirs = with_peft(copy.deepcopy(base), targets, r=16, alpha=32)
own = [module for module in mine.modules() if isinstance(module, LoRA)]
library = [module for module in theirs.modules() if hasattr(module, "lora_A")]
for one, other in zip(own, library, strict=True):
    one.A.data.copy_(other.lora_A["default"].weight)

tokens = list(course_text().encode())  # bytes of the course's own source code: 256 different tokens
tiny = Recipe(precision="fp32", batch=4, seq=128, accum=2)
quiet = {"updates": 3, "learning_rate": 1e-2, "show": lambda text: None}
curves = [finetune(model, tokens, tiny, **quiet) for model in (mine, theirs)]
trained = [sum(each.numel() for each in model.parameters() if each.requires_grad) for model in (mine, theirs)]
print("mine  ", trained[0], "trained parameters, loss", [f"{loss:.6f}" for loss in curves[0]])
print("peft's", trained[1], "trained parameters, loss", [f"{loss:.6f}" for loss in curves[1]])

by_rank = {f"rank {r}, {names}": llama.lora_params(r, (names,)) for r, names in ((16, "attention"), (16, "all-linear"), (64, "attention"))}
print()
for name, count in by_rank.items():
    print(f"7B, {name:20} {count / 1e6:6.1f} M = {count / llama.params:.2%}; Adam {8 * count / 1e6:5.0f} MB, "
          f"for all weights in FP32 {8 * llama.params / GB:.0f} GB")
tell("C15")

# %% [markdown] lang="en"
# The same number of parameters and the same losses, digit by digit: twenty lines are LoRA. What peft adds is saving, switching, merging, and many layer types. (`Deeper: for real` below trains, saves, reloads and merges.)
#
# ## What fits on which card
#
# One sequence of 2048 tokens at a time, AdamW, as the ledger says it; below the picture the same with knobs (Tab from one to the next, arrow keys to move it). *Tight* means: if the allocator wastes little. The picture is about bytes alone: a T4 has the room for some of the BF16 columns, but computes that type only by emulation.

# %% [markdown] lang="zh"
# 参数一样多，损失一位不差：LoRA 就是这二十行。peft 多出来的是保存、切换、合并，以及各种各样的层。（下面“深入：动真格的”一节会训练、保存、重新加载、合并。）
#
# ## 什么卡装得下什么
#
# 每次一条 2048 个 token 的序列，优化器 AdamW，结论由账本给出；图的下面有旋钮可以自己拧（Tab 换旋钮，方向键拧）。*tight*（勉强）的意思是：分配器浪费得少就能跑。这张图只管字节：有几列 BF16 在 T4 上放得下，可 T4 的 BF16 是模拟的。

# %%
from course_lib.card_grid import card_grid, draw_grid, grid_alt_text

lora = Recipe(lora_rank=16, seq=2048)
nf4 = replace(lora, quant="nf4", double_quant=True, kbit_prepare=True, precision="amp-fp16", checkpoint="block")
qwen, llama_13b = read_model("qwen2.5-0.5b"), read_model("llama-13b")
grid = card_grid(
    [find_card(name) for name in ("RTX 4060 Laptop", "T4", "RTX 3090", "A100 40GB", "A100 80GB", "H200")],
    {
        "0.5B, all\nbf16": (qwen, Recipe()),
        "7B, all\namp-bf16": (llama, Recipe(precision="amp-bf16")),
        "7B, all\nbf16": (llama, Recipe()),
        "7B, LoRA\nbf16": (llama, lora),
        "7B, LoRA\n+ checkpoints": (llama, replace(lora, checkpoint="block")),
        "7B, NF4\n+ checkpoints": (llama, nf4),
        "13B, NF4\n+ checkpoints": (llama_13b, nf4),
    },
)
show(draw_grid(grid), grid_alt_text(grid))

from course_lib.widgets import bill_explorer

knobs = ("quant", "lora_rank", "checkpoint", "batch", "seq")
bill_explorer(model="llama-7b", card="RTX 3090", vary=knobs, lora_rank=16, accum=8)

# %% [markdown] lang="en"
# **Task.** Same job, 32 × 2048 tokens an update, same RTX 3090, another price limit: nothing may be computed twice. So at most 1.1 times the operations of LoRA without checkpointing. Choose the cuts. Two more are allowed: the frozen weights may be stored in 4 bits (`quant="nf4"`, `double_quant=True`; `Deeper: 4 bits` explains them), and adapters may be put on fewer matrices (`lora_targets="q_proj,v_proj"`, as in the opening). It counts only if it surely *fits*.

# %% [markdown] lang="zh"
# **任务。** 还是那份活：每次更新 32 × 2048 个 token，还是 RTX 3090，但换一条代价上限：什么都不许算两遍。也就是运算量最多为“LoRA、不设检查点”的 1.1 倍。该砍哪几刀，你来选。另外还准用两刀：冻结的权重可以存成 4 比特（`quant="nf4"`、`double_quant=True`，原理见“深入：4 比特”）；适配器可以少挂几个矩阵（`lora_targets="q_proj,v_proj"`，开头那次就是这样）。肯定“装得下”才算数。

# %%
from course_lib.tasks import check, hint

my_recipe = ...  # Recipe(lora_rank=16, seq=2048, batch=..., accum=..., ...)
### BEGIN SOLUTION
my_recipe = Recipe(
    lora_rank=16, lora_targets="q_proj,v_proj", quant="nf4", double_quant=True, seq=2048, batch=1, accum=32
)
### END SOLUTION
check("recipe.cuts_for_a_3090", my_recipe)

# %% [markdown] lang="en"
# ## Say it in an interview
#
# **Why does LoRA save so much?** "Adam keeps two moments for what is trained, and gradients exist for what is trained. Of a 7B, rank 16 on attention trains a quarter of a per cent, so both accounts all but vanish: from 40 GB in BF16 to 0.2. It does not touch the frozen weights, 13.5 GB, nor the activations, which even grow by a seventh. So for a 24 GB card it needs checkpointing, or a small micro-batch, too."
#
# **7B on a 24 GB card, how?** "BF16 weights, 13.5 GB, frozen; LoRA; checkpointing of every block; micro-batches of 4 × 2048, accumulated. That is 19 GB of tensors, 20 to 23 on the card. If it has to be less, 4-bit weights take another 10 GB."
#
# **What does it cost?** "In operations a little less than full fine-tuning, 6.15 against 6.44 for each parameter and token: LoRA saves the weights' gradients, three tenths, and checkpointing spends most of that again. Against LoRA alone it is 37 % more. And the adapter can only learn what a low-rank change can express."
#
# ## The next question
#
# All of this was planned. But what if a run dies on a Friday night, with a message, and nobody has planned it? That is `06_troubleshooting`. Before that, the sections below: 4 bits and small cards, other ways than LoRA, and the verdict on every claim of this course.

# %% [markdown] lang="zh"
# ## 面试时这样说
#
# **LoRA 为什么能省这么多？** “Adam 只为要训练的参数存两个动量，梯度也只有要训练的参数才有。7B 模型在注意力上加秩 16，只训练千分之二点五，这两笔账几乎归零：BF16 下从 40 GB 降到 0.2 GB。但 13.5 GB 的冻结权重它不碰，激活值还会多出七分之一。所以要上 24 GB 的卡，还得配检查点或者小微批。”
#
# **24 GB 的卡怎么微调 7B？** “权重用 BF16，13.5 GB，冻结；加 LoRA；每层设检查点；微批 4 × 2048，再做累积。张量 19 GB，卡上显示 20 到 23 GB。还要再省，就把权重量化到 4 比特，又少 10 GB。”
#
# **代价是什么？** “运算量比全量微调还略少，每个参数、每个 token 是 6.15 对 6.44：LoRA 不算权重的梯度，省了三成，检查点又把其中大半花掉了。和不设检查点的 LoRA 比，多 37%。另外，适配器只能学到低秩的改变。”
#
# ## 下一个问题
#
# 以上都是事先算好的。可要是周五晚上训练突然死掉，留下一行报错，而谁也没算过呢？那是 `06_troubleshooting`。在那之前，下面还有：4 比特和小显卡、LoRA 以外的路，以及本课程每一条论断的结论。

# %% [markdown] lang="en"
# ## Deeper: for real: train, save, reload, merge
#
# The same fine-tune from end to end, with peft: a tiny Llama with random weights reads the course's source code, byte by byte. Watch the loss. It begins above $\ln 256 = 5.5$, what pure guessing costs, since a random model is sure of nonsense. (On a graphics card, `Deeper: on your own card` does it with a pretrained model.)

# %% [markdown] lang="zh"
# ## 深入：动真格的：训练、保存、重新加载、合并
#
# 用 peft 把同样的微调从头到尾走一遍：一个随机权重的小 Llama，逐字节读课程自己的源代码。看损失怎么降。纯靠瞎猜的损失是 $\ln 256 = 5.5$，它一开始比这还高，因为随机的模型会一本正经地胡说。（有显卡的话，“深入：在你自己的卡上”会换成预训练模型。）

# %%
import math
import tempfile
from pathlib import Path

adapted = with_peft(copy.deepcopy(base), targets, r=16, alpha=32)
curve = finetune(adapted, tokens, tiny, updates=30, learning_rate=1e-2)  # losses of 30 updates
print(f"\nguessing costs {math.log(256):.2f}; {trained[1]:,} numbers trained beside {sum(p.numel() for p in base.parameters()):,} frozen ones")

folder = Path(tempfile.mkdtemp())
adapted.save_pretrained(folder)
file_bytes = (folder / "adapter_model.safetensors").stat().st_size
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    reloaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()

probe_tokens = torch.tensor([tokens[:64]])  # [1, 64]
with torch.no_grad():
    trained_says = adapted.eval()(probe_tokens).logits
    reloaded_says = reloaded(probe_tokens).logits
    merged_says = reloaded.merge_and_unload()(probe_tokens).logits
print(f"the adapter's file: {file_bytes:,} B = 4 B x {trained[1]:,} and a header")
print("reloaded, same logits:", torch.equal(reloaded_says, trained_says))
print(f"merged, largest difference: {(merged_says - trained_says).abs().max():.1e} of {trained_says.abs().max():.1f}")

# %% [markdown] lang="en"
# The file holds the adapters alone: the base model is needed again to use them. Merged, the model is as fast and as large as before, and equal up to rounding.
#
# **Task.** What does merging do? $W$, $A$ and $B$ become one matrix of $W$'s shape that gives the same $y$. Write it.

# %% [markdown] lang="zh"
# 文件里只有适配器，用的时候还得配上原来的基座模型。合并以后，模型和原来一样快、一样大，输出只差舍入误差。
#
# **任务。** 合并做了什么？$W$、$A$、$B$ 变成一个和 $W$ 同样形状的矩阵，算出来的 $y$ 不变。把它写出来。

# %%
def merged(W, A, B, alpha):
    """One weight in place of three: W [out, in], A [r, in], B [out, r]."""
    ...
    ### BEGIN SOLUTION
    return W + alpha / A.shape[0] * B @ A
    ### END SOLUTION


check("recipe.merged", merged)

# %% [markdown] lang="en"
# ## Deeper: the order of the cuts
#
# How much does checkpointing save? The table said 53.8 GB. But it also said in which order the cuts were made. Make each of them **first**, from FP32 with micro-batches of 4, or **last**, when the three others are there:

# %% [markdown] lang="zh"
# ## 深入：先砍哪一刀
#
# 检查点能省多少？前面的表说是 53.8 GB。可那是按表里的顺序砍的。现在让每一刀都试两次：**最先**砍（从 FP32、微批 4 条出发），以及**最后**砍（其余几刀都已砍完）：

# %%
start, end = recipes["accumulate 8×4"], recipes["checkpointing"]
first_last = {
    "pure BF16": ({"precision": "bf16"}, {"precision": "fp32"}),
    "LoRA": ({"lora_rank": 16}, {"lora_rank": 0}),
    "checkpointing": ({"checkpoint": "block"}, {"checkpoint": "none"}),
}
print(f"{'GB saved when':14}{'made first':>12}{'made last':>12}")
for name, (make, undo) in first_last.items():
    saved_first = bills["accumulate 8×4"].peak_bytes - ledger.predict(llama, replace(start, **make)).peak_bytes
    saved_last = ledger.predict(llama, replace(end, **undo)).peak_bytes - bills["checkpointing"].peak_bytes
    print(f"{name:14}{saved_first / GB:12.1f}{saved_last / GB:12.1f}")

# %% [markdown] lang="en"
# A cut has no saving of its own, only one at a place in a row: after the weights are in BF16 their gradients are half as large, and half as much is left to save. Made last, LoRA saves 48.2 GB, more than gradients and optimizer state have: without it the peak is in the optimizer step, where foreach AdamW makes another 13.5 GB. So "LoRA saves 50 GB" cannot be true or false before it is said *in which run*. Savings must not be added up from tables; bills may be compared.
#
# ## Deeper: 4 bits, for a T4 or 8 GB
#
# The recipe left the frozen weights, 12.6 of its 17.9 GiB. **NF4** stores them in 4 bits: blocks of 64 values share one maximum, and double quantisation stores the maxima in 8 bits as well. For a product one matrix at a time is unpacked to 16 bits. Guess: how many bits does a quantised weight take, maxima included?

# %% [markdown] lang="zh"
# 一刀省多少，没有固有的数，只有在某个位置上的数：权重先换成 BF16，梯度就只剩一半，能省的也只剩一半。LoRA 放在最后砍，省 48.2 GB，比梯度加优化器状态还多：没有它的时候，峰值落在优化器更新，foreach AdamW 还要再占 13.5 GB。所以“LoRA 省 50 GB”这句话，不说清是*哪次训练*，就谈不上对错。表里的节省不能相加，账单才可以比较。
#
# ## 深入：4 比特，给 T4 和 8 GB 的卡
#
# 前面的配方占 17.9 GiB，其中 12.6 GiB 是没碰过的冻结权重。**NF4** 用 4 比特来存它：每 64 个值共用一个最大值；双重量化把这些最大值也压成 8 比特。做乘法时，一次只还原一个矩阵到 16 位。猜一猜：连最大值算在内，一个量化后的权重平均占多少比特？

# %%
bits_a_weight = ...
### BEGIN SOLUTION
bits_a_weight = 4
### END SOLUTION
predict("recipe.nf4_bits", bits_a_weight, unit="bits")

# %%
elements = llama.layers * sum(linear.params for linear in llama.linears)  # embedding and head stay in 16 bits
stored = {}
for double in (False, True):
    qlora = Recipe(quant="nf4", double_quant=double, lora_rank=16)
    quantised_bytes = ledger.predict(llama, qlora).static_bytes[Account.WEIGHTS]
    quantised_bytes -= 2 * (llama.params - elements) + 4 * llama.lora_params(16, ("attention",))
    stored[double] = 8 * quantised_bytes / elements
print(f"NF4 {stored[False]:.3f} bits a weight, with double quantisation {stored[True]:.3f}\n")
settle("recipe.nf4_bits", stored[True], unit="bits")

on_t4 = Recipe(precision="amp-fp16", quant="nf4", double_quant=True, kbit_prepare=True, lora_rank=16, checkpoint="block")
print(f"\n{'7B, NF4, LoRA':22}{'tensors, GiB':>13}{'on the card':>15}   T4        RTX 4060 Laptop")
for batch, seq in ((1, 512), (1, 1024), (1, 2048), (4, 2048)):
    bill = ledger.predict(llama, replace(on_t4, batch=batch, seq=seq))
    device = device_range(bill.peak_bytes, bill.static_bytes[Account.WEIGHTS] + bill.static_bytes[Account.OPTIMIZER])
    verdicts = [device.verdict(find_card(card).usable_bytes) for card in ("T4", "RTX 4060 Laptop")]
    print(f"{f'{batch} x {seq} tokens':22}{bill.peak_bytes / GIB:13.2f}{device.low_bytes / GIB:7.1f} to {device.high_bytes / GIB:4.1f}"
          f"   {verdicts[0]:9} {verdicts[1]}")

# %% [markdown] lang="en"
# So 7B can be trained on a Colab T4, and with short sequences on a laptop. Two things to know:
#
# - A T4 computes BF16 only by emulation, slowly. There the recipe is FP16 under autocast, with FP32 adapters and a `GradScaler`.
# - peft's preparation turns norms, embedding and head to FP32 (`kbit_prepare`), half a GiB here that is easily forgotten.
#
# The price: each product unpacks its matrix again, and the frozen weights are rounded to 16 values.
#
# **Task.** Llama-2-7B on a T4, sequences of at least 1024 tokens, micro-batches of at least 2, surely *fits*. Write the recipe, in the type that a T4 computes in.

# %% [markdown] lang="zh"
# 所以 7B 可以在 Colab 的 T4 上训，序列短一点的话，笔记本也行。有两点要知道：
#
# - T4 的 BF16 是模拟出来的，很慢。在 T4 上要用 FP16 autocast，适配器用 FP32，再配 `GradScaler`。
# - peft 的预处理会把归一化层、嵌入层和输出层转成 FP32（`kbit_prepare`），这里就是半个 GiB，很容易漏算。
#
# 代价：每次乘法都要重新还原矩阵，而且冻结的权重只剩 16 种取值。
#
# **任务。** Llama-2-7B，T4，序列至少 1024 个 token，微批至少 2 条，肯定“装得下”。写出配方，数值类型要用 T4 真正会算的。

# %%
t4_recipe = ...  # Recipe(...)
### BEGIN SOLUTION
t4_recipe = replace(on_t4, batch=2, seq=1024)
### END SOLUTION
check("recipe.on_a_t4", t4_recipe)

# %% [markdown] lang="en"
# ## Deeper: on your own card
#
# With a graphics card, the next cell fine-tunes a pretrained model and shows what it writes before and after. `MODEL` is a name on the Hugging Face Hub or a folder; with `FOUR_BIT` the weights are quantised (bitsandbytes is installed if it is missing). SmolLM2-135M is a download of 269 MB, and its 60 updates are meant to take a minute or two on a T4.

# %% [markdown] lang="zh"
# ## 深入：在你自己的卡上
#
# 有显卡的话，下一个单元会微调一个预训练模型，并给出训练前后它各写出什么。`MODEL` 可以是 Hugging Face Hub 上的名字，也可以是本地文件夹；`FOUR_BIT` 为真时量化权重（没装 bitsandbytes 会自动装上）。SmolLM2-135M 要下载 269 MB，60 次更新在 T4 上预计一两分钟。

# %%
from course_lib.pretrained import finetune_pretrained

MODEL, FOUR_BIT = "HuggingFaceTB/SmolLM2-135M", False
download_bytes = 2 * read_model("smollm2-135m").params
if torch.cuda.is_available():
    finetune_pretrained(MODEL, course_text(), four_bit=FOUR_BIT, updates=60)
else:
    print(f"no graphics card here; on one, this downloads {download_bytes / 1e6:.0f} MB and trains {MODEL}")

# %% [markdown] lang="en"
# ## Deeper: without LoRA
#
# Is LoRA the only way onto one card? The accounts that it removes, gradients and optimizer state, can be removed otherwise: update each weight **in the backward pass**, as soon as its gradient is there, and drop the gradient. Then no two of them are alive together. PyTorch has a hook for it. With Adafactor, whose state is a row and a column for each matrix, *all* 6.7 billion parameters are trained:

# %% [markdown] lang="zh"
# ## 深入：不用 LoRA
#
# 要上单卡，只有 LoRA 一条路吗？它砍掉的是梯度和优化器状态，这两笔账还有别的砍法：**在反向传播途中就更新**，哪个权重的梯度一到手就更新它，然后扔掉梯度，于是任何时候都没有两份梯度同时存在。PyTorch 正好有这样的钩子。优化器用 Adafactor，它给每个矩阵只存一行一列。这样训练的是*全部* 67 亿个参数：

# %%
from course_lib.article.cuts import WITHOUT_LORA, all_weights_in_backward

whole = Recipe(checkpoint="block", batch=1, seq=2048)
print("all weights of Llama-2-7B, pure BF16, checkpointing, 1 x 2048 tokens; peak in GiB")
for name, change in WITHOUT_LORA.items():
    print(f"{name:32}{ledger.predict(llama, replace(whole, **change)).peak_bytes / GIB:6.2f}")
in_backward = all_weights_in_backward()  # a dry run: register_post_accumulate_grad_hook on every parameter
print(f"{'Adafactor in the backward pass':32}{in_backward.peak_bytes / GIB:6.2f}")
tell("C21")
show(timeline(in_backward, card=rtx_3090), alt_text(in_backward))

# %% [markdown] lang="en"
# So LoRA is *a* precondition for AdamW as it stands, not for training on one card. (What such a step gives up: gradients cannot be accumulated or clipped as a whole, since they are never there together; and pure BF16 rounds.)
#
# ## Deeper: freezing is not LoRA
#
# "Freeze most layers" and "LoRA" are often said in one breath. Train the last two blocks of 32 and freeze the rest, without adapters, or put adapters into all of them. Both train little. What does each keep for the backward pass?

# %% [markdown] lang="zh"
# 所以，LoRA 是“照原样用 AdamW”的前提，不是单卡训练的前提。（这种更新也有代价：梯度从不同时存在，就没法累积，也没法整体裁剪；纯 BF16 还有舍入问题。）
#
# ## 深入：冻结不等于 LoRA
#
# “冻结大部分层”和“LoRA”常被混为一谈。一种是 32 层里只训练最后两层，其余冻结，不加适配器；另一种是每层都加适配器。两种训练的参数都很少。它们各要为反向传播留下多少？

# %%
from course_lib.accounts import Moment
from course_lib.article.cuts import adapters_trained, last_blocks_trained

kinds = {"last 2 blocks": last_blocks_trained(2), "LoRA in all 32": adapters_trained()}
counts = {"last 2 blocks": 2 * llama.block_params, "LoRA in all 32": llama.lora_params(16, ("attention",))}
print(f"{'trained':16}{'parameters, M':>14}{'activations, GB':>17}{'optimizer, GB':>15}{'peak, GB':>10}")
for name, each in kinds.items():
    at_end = each.end_of(Moment.FORWARD)
    print(f"{name:16}{counts[name] / 1e6:14.1f}{at_end[Account.ACTIVATIONS] / GB:17.2f}"
          f"{at_end[Account.OPTIMIZER] / GB:15.2f}{each.peak_bytes / GB:10.1f}")
tell("C22")

# %% [markdown] lang="en"
# Below the lowest trained weight nobody needs a gradient, so nothing is kept: freezing from below saves activations without any checkpointing. LoRA has something to train in every block, so the backward pass goes all the way down, through frozen matrices, and the activations stay. The two save different accounts.
#
# ## Deeper: when the recipe fails
#
# - **Long sequences.** Checkpointing leaves one block's inside and the logits, both linear in length: at 1 × 16384 tokens this recipe is where 8 × 2048 was.
# - **A large vocabulary.** With 128,000 words the spike of the logits is four times as high as Llama-2's; there a fused loss is the next cut.
# - **Training embedding or head as well** (`modules_to_save`): each is a full matrix with gradient and moments, which no adapter makes small.
# - **Saving a merged model** needs the base in 16 bits again. A 4-bit base is unpacked and rounded: merge into the 16-bit model.
#
# ## Deeper: the verdict on every claim
#
# The course follows one article and checks what it says. Here is every claim with what the code finds, computed while you wait; each section of the course shows the way there.

# %% [markdown] lang="zh"
# 在最低的可训练权重以下，谁也不需要梯度，所以什么都不用留：从下往上冻结，不设检查点也省激活值。LoRA 则每层都有东西要训练，反向传播要穿过冻结的矩阵一直走到底，激活值一样也省不掉。两者省的不是同一笔账。
#
# ## 深入：这份配方什么时候不管用
#
# - **序列很长。** 检查点之后还剩一层的内部和 logits，两者都随长度线性增长：1 × 16384 个 token，和 8 × 2048 占得一样多。
# - **词表很大。** 12.8 万词的词表，logits 那根尖刺是 Llama-2 的四倍高；这时下一刀该砍的是损失函数（用融合的）。
# - **嵌入层或输出层也要训练**（`modules_to_save`）：那是整个矩阵，梯度和动量一样不少，适配器帮不上忙。
# - **保存合并后的模型**又需要 16 位的基座。4 比特的基座还原后带着舍入误差：应该并进 16 位的模型里。
#
# ## 深入：逐条下结论
#
# 这门课跟着一篇文章走，也检查它说的话。下面是每一条论断和代码得出的结论，当场计算；怎么得来的，各课里都有。

# %%
from course_lib.article import claims_page

claims_page()

# %% [markdown] lang="en"
# ## Deeper: one page to print
#
# What stays of the course on a desk: bytes by recipe, the logits' rule, the cuts with their prices, the order of remedies, types by card. It is made by the same code, so its figures are those above. Take the file, open it in a browser, print it on A4.

# %% [markdown] lang="zh"
# ## 深入：一页纸，打印出来
#
# 学完以后放在桌上的就这一页：每种配方的字节数、logits 的算法、每一刀和它的代价、先后顺序、什么卡用什么类型。它由同一套代码生成，数字和上面的一致。把文件存下来，用浏览器打开，A4 打印。

# %%
from course_lib.cheat_sheet import save_cheat_sheet, show_cheat_sheet

save_cheat_sheet("cheat_sheet.svg")
show_cheat_sheet()
