"""Settings of the process that every test needs."""

import os

# Some virtual machines report AMX and do not have it. oneDNN 3.12, in torch 2.13, believes them and dies of an illegal
# instruction in the first bfloat16 matrix product. It reads this when it is first used, and so do child processes.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
