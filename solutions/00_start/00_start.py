# %% [markdown] lang="en"
# # Start here
#
# Text with $a + b$.

# %% [markdown] lang="zh"
# # 从这里开始
#
# 文字 $a + b$。

# %% tags=["setup"]
LANGUAGE = "en"

# %%
from course_lib.journal import predict, settle

guess_gb = ...  # your guess, in GB
### BEGIN SOLUTION
guess_gb = 28
### END SOLUTION
predict("start.weights", guess_gb, unit="GB")

# %%
settle("start.weights", 7e9 * 4 / 1e9)
