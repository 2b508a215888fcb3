"""Building kernels: candidates generated, compiled in parallel, the fastest chosen.

On a CUDA device the candidates are timed on tensors of the real shapes, once per kernel and
machine; the choice is remembered in the cache. On the CPU, where asked for, kernels run through
Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fuseopt.codegen.generate import Candidate, generate
from fuseopt.codegen.source import KernelSource
from fuseopt.config import Environment
from fuseopt.errors import KernelError
from fuseopt.ir import dims
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.runtime.call import Built, Launch, RegionKernel, stream_of
from fuseopt.runtime.samples import draw_inputs
from fuseopt.runtime.steps import in_turn

TUNE_MEMORY = 0.6  # share of the free memory that trying out a kernel may take


@dataclass(frozen=True, slots=True)
class Order:
    """A kernel to be built: the region's key and loop kernel, a name and one line about it."""

    key: str
    name: str
    title: str
    kernel: LoopKernel
    symbols: tuple[Any, ...]
    hints: tuple[int, ...] = ()


@dataclass(slots=True)
class Builder:
    """Builds kernels for one device.

    device: a CUDA device, or the CPU for the interpreter.
    """

    device: torch.device
    environment: Environment
    _store: Any = field(default=None)

    @property
    def store(self) -> Any:
        """The on-disk cache."""
        if self._store is None:
            from fuseopt.runtime.cache import open_store

            self._store = open_store(self.environment.cache_dir)
        return self._store

    def build(self, orders: Sequence[Order]) -> dict[str, RegionKernel | KernelError]:
        """Return a kernel, or why there is none, for each distinct key."""
        distinct = {o.key: o for o in orders}
        made = [(order, self._region_kernel(order)) for order in distinct.values()]
        if self.device.type == "cuda":
            self._compile_ahead(made)
        kernels: dict[str, RegionKernel | KernelError] = {}
        for order, kernel in made:
            try:
                kernel.for_sizes(order.hints)
                kernels[order.key] = kernel
            except KernelError as error:
                kernels[order.key] = error
        return kernels

    def _region_kernel(self, order: Order) -> RegionKernel:
        return RegionKernel(
            order.name,
            order.kernel,
            order.symbols,
            self.device,
            lambda sizes: self._build_one(order, sizes),
        )

    def _candidates(self, order: Order, sizes: dict[Any, int]) -> list[Candidate]:
        return generate(
            order.kernel,
            order.name,
            sizes,
            title=order.title,
            interpreted=self.device.type != "cuda",
        )

    def _compile_ahead(self, made: Sequence[tuple[Order, RegionKernel]]) -> None:
        """Fill the cache with all candidates of all kernels, several at a time."""
        from fuseopt.runtime.compile import Target, compile_many

        sources = []
        for order, kernel in made:
            bucket = kernel.bucket(order.hints)
            candidates = self._candidates(order, dict(zip(order.symbols, bucket, strict=True)))
            tried = candidates if self.environment.tune else candidates[:1]
            sources += [source for c in tried for source in c.sources]
        compile_many(sources, Target.of(self.device), self.store, self.environment.jobs)

    def _build_one(self, order: Order, sizes: dict[Any, int]) -> Built:
        candidates = self._candidates(order, sizes)
        if self.device.type != "cuda":
            return self._interpreted(candidates[0])
        if len(candidates) == 1 or not self.environment.tune or not self._fits(order, sizes):
            return self._launched(candidates[0])
        return self._fastest(order, candidates, sizes)

    def _interpreted(self, candidate: Candidate) -> Built:
        from fuseopt.runtime.interpret import interpret
        from fuseopt.runtime.module import source_path

        def launch_of(source: KernelSource) -> Launch:
            def launch(x: int, y: int, z: int, stream: int, *args: Any) -> None:
                interpret(source, (x, y, z), args, self.store)

            return launch

        launch = in_turn(candidate, launch_of)
        return Built(candidate, launch, str(source_path(candidate.source, self.store)))

    def _launched(self, candidate: Candidate) -> Built:
        from fuseopt.runtime.compile import Target, compile_kernel
        from fuseopt.runtime.launch import Launcher

        paths = []

        def launch_of(source: KernelSource) -> Launch:
            binary = compile_kernel(source, Target.of(self.device), self.store)
            paths.append(str(binary.path))
            return Launcher(binary, self.device).launch

        launch = in_turn(candidate, launch_of)
        return Built(candidate, launch, paths[0])

    # --- tuning --------------------------------------------------------------------------------

    def _fits(self, order: Order, sizes: dict[Any, int]) -> bool:
        free, _ = torch.cuda.mem_get_info(self.device)
        params = (*order.kernel.inputs, *order.kernel.outputs)
        return sum(_bytes(p, sizes) for p in params) < free * TUNE_MEMORY

    def _fastest(self, order: Order, candidates: list[Candidate], sizes: dict[Any, int]) -> Built:
        from fuseopt.runtime.autotune import choose, time_candidates

        launched: dict[int, Built] = {}

        def measure() -> list[float]:
            with torch.cuda.device(self.device):
                tensors = self._tensors(order, sizes)
                params = (*order.kernel.inputs, *order.kernel.outputs)
                moved = sum(_bytes(p, sizes) for p in params)
                calls = [
                    _Trial(self, candidate, launched, number, tensors, sizes)
                    for number, candidate in enumerate(candidates)
                ]
                return time_candidates(calls, moved)

        name = torch.cuda.get_device_name(self.device)
        digests = [" ".join(f"{s.name} {s.digest}" for s in c.sources) for c in candidates]
        key = f"{order.key} {sorted(map(str, sizes.items()))} {name}"
        best = choose(self.store, key, digests, measure)
        return launched.get(best) or self._launched(candidates[best])

    def _tensors(self, order: Order, sizes: dict[Any, int]) -> list[torch.Tensor]:
        generator = torch.Generator(self.device).manual_seed(0)
        inputs = draw_inputs(order.kernel, self.device, sizes, generator)
        outputs = [
            torch.empty_strided(
                [dims.hint(s, sizes) for s in p.shape],
                [dims.hint(s, sizes) for s in p.strides],
                dtype=p.dtype,
                device=self.device,
            )
            for p in order.kernel.outputs
        ]
        return [*inputs, *outputs]


@dataclass(slots=True)
class _Trial:
    """One launch of a candidate on given tensors."""

    builder: Builder
    candidate: Candidate
    launched: dict[int, Built]
    number: int
    tensors: list[torch.Tensor]
    sizes: dict[Any, int]

    def __call__(self) -> None:
        built = self.launched.get(self.number)
        if built is None:
            built = self.launched[self.number] = self.builder._launched(self.candidate)
        device = self.builder.device
        passed = [*built.passed(self.sizes), *built.scratch(self.sizes, device)]
        stream = stream_of(device)
        built.launch(built.grid(self.sizes), 1, 1, stream, *self.tensors, *passed)


def _bytes(param: TensorParam, sizes: dict[Any, int]) -> int:
    return dims.hint(param.distinct, sizes) * param.dtype.itemsize
