"""The compressors' kernels for GPUs. Its module is imported where there is one: it needs Triton."""
