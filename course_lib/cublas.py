"""The workspaces that cuBLAS takes through PyTorch's allocator: part of every figure that a card reports.

Each pair of handle and stream has one (parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp):
2 x 4096 KiB + 8 x 16 KiB, on Hopper and later 32 MiB. A step has two, since the forward pass and autograd's backward
pass run in different threads.
"""

CUBLAS_WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
CUBLAS_WORKSPACES = 2
