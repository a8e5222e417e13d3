"""The PyTorch that there must be, which is looked at before anything of it is used."""
from .._library import Error

LEAST = 2, 4  # what the tests have run with

try:
    import torch
except ImportError as error:
    raise Error(f"gacc.from_torch needs PyTorch {LEAST[0]}.{LEAST[1]} or later, and there is none here "
                f"({error})") from None
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST:
    raise Error(f"gacc.from_torch needs PyTorch {LEAST[0]}.{LEAST[1]} or later, and this is {torch.__version__}")
