"""The consumer GPUs with which volunteers compute: their speed and memory."""

from dataclasses import dataclass

EFFICIENCY = 0.4
"""Effective FLOP/s over the published peak. Chosen: large training runs report 0.3 to 0.55 on data-centre GPUs
(PaLM 0.46, arXiv 2204.02311; Megatron-LM 0.52, arXiv 2104.04473), and homes have smaller matrices."""
USABLE_MEMORY = 0.9
"""Part of the memory that a volunteer's desktop leaves. Chosen."""


@dataclass(frozen=True, slots=True)
class ConsumerGpu:
    """A kind of GPU."""

    name: str
    peak_teraflops: float
    """TFLOP/s of dense matrix products in fp16 with fp32 sums, as published; in fp32 where the GPU has no matrix
    units."""
    memory_gigabytes: float
    share: float
    """Share of the volunteers that have this GPU. Chosen."""

    @property
    def flops(self) -> float:
        """Effective FLOP/s."""
        return self.peak_teraflops * 1e12 * EFFICIENCY

    @property
    def memory_bytes(self) -> float:
        """Bytes that training may take."""
        return self.memory_gigabytes * 1e9 * USABLE_MEMORY


# GeForce from NVIDIA's data sheets and architecture papers (GA102: 71 for the RTX 3090; Ada: 165.2 for the RTX 4090);
# on GeForce 30 and 40 this rate is twice that of fp32, by which the smaller cards' are taken. GTX: fp32, because
# Pascal has no tensor cores and slow fp16. Apple: fp32 of the GPU as Apple states it; 3/4 of 32 GB of unified memory.
MACHINES = (
    ConsumerGpu("GTX 1080", 8.9, 8, 0.10),
    ConsumerGpu("GTX 1080 Ti", 11.3, 11, 0.07),
    ConsumerGpu("RTX 3060", 25.5, 12, 0.25),
    ConsumerGpu("RTX 3070", 40.6, 8, 0.13),
    ConsumerGpu("RTX 3090", 71.0, 24, 0.12),
    ConsumerGpu("RTX 4070", 58.3, 12, 0.15),
    ConsumerGpu("RTX 4090", 165.2, 24, 0.10),
    ConsumerGpu("Apple M1 Max", 10.4, 24, 0.08),
)
"""The GPUs of volunteers; their shares sum to 1."""
