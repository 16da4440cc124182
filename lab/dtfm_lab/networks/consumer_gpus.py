"""The consumer GPUs with which volunteers compute: their speed and memory."""

from dataclasses import dataclass

from dtfm_protocol.job.job_file import Precision

EFFICIENCY = 0.4
"""Effective FLOP/s over the published peak. Chosen: large training runs report 0.3 to 0.55 on data-centre GPUs
(PaLM 0.46, arXiv 2204.02311; Megatron-LM 0.52, arXiv 2104.04473), and homes have smaller matrices."""
USABLE_MEMORY = 0.9
"""Part of the memory that a volunteer's desktop leaves. Chosen."""


@dataclass(frozen=True, slots=True)
class ConsumerGpu:
    """A kind of GPU."""

    name: str
    fp32_teraflops: float
    """TFLOP/s of fp32, as published."""
    bf16_teraflops: float
    """TFLOP/s of dense matrix products of 16 bits with fp32 sums, as published; the fp32 ones where the GPU has no
    matrix units, or none that take bf16, as it then computes in fp32."""
    memory_gigabytes: float
    share: float
    """Share of the volunteers that have this GPU. Chosen."""

    @property
    def flops(self) -> dict[Precision, float]:
        """Effective FLOP/s, by precision."""
        return {"fp32": self.fp32_teraflops * 1e12 * EFFICIENCY, "bf16": self.bf16_teraflops * 1e12 * EFFICIENCY}

    @property
    def memory_bytes(self) -> float:
        """Bytes that training may take."""
        return self.memory_gigabytes * 1e9 * USABLE_MEMORY


# GeForce from NVIDIA's data sheets and architecture papers (GA102: RTX 3090 35.6 and 71; Ada: RTX 4090 82.6 and 165.2);
# on GeForce 30 and 40 products of 16 bits with fp32 sums have twice the rate of fp32, by which the smaller cards' are
# taken. GTX: Pascal has no matrix units, and slow fp16. Apple: fp32 of the GPU as Apple states it, which has no faster
# 16 bits; 3/4 of 32 GB of unified memory.
MACHINES = (
    ConsumerGpu("GTX 1080", 8.9, 8.9, 8, 0.10),
    ConsumerGpu("GTX 1080 Ti", 11.3, 11.3, 11, 0.07),
    ConsumerGpu("RTX 3060", 12.75, 25.5, 12, 0.25),
    ConsumerGpu("RTX 3070", 20.3, 40.6, 8, 0.13),
    ConsumerGpu("RTX 3090", 35.6, 71.0, 24, 0.12),
    ConsumerGpu("RTX 4070", 29.15, 58.3, 12, 0.15),
    ConsumerGpu("RTX 4090", 82.6, 165.2, 24, 0.10),
    ConsumerGpu("Apple M1 Max", 10.4, 10.4, 24, 0.08),
)
"""The GPUs of volunteers; their shares sum to 1."""
