"""Tensor operators: the vector is read as a tensor, and a decomposition of low rank is sent."""

from raybench.compressors.tensors.message import TensorMessage
from raybench.compressors.tensors.operators import CP, HOSVD, STHOSVD, TensorTrain, Tucker

__all__ = ["CP", "HOSVD", "STHOSVD", "TensorMessage", "TensorTrain", "Tucker"]
