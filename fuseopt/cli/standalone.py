"""A region as a Python file that runs on its own: kernel, inputs, and a check against PyTorch.

The file needs torch and triton, not fuseopt. Without a GPU it runs through Triton's interpreter.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

import torch

from fuseopt.codegen.generate import Candidate
from fuseopt.graph.unchecked import without_refusals
from fuseopt.ir import dims
from fuseopt.ir.kernel import TensorParam
from fuseopt.plan import Site
from fuseopt.runtime.samples import index_limits
from fuseopt.verify.compare import LIMITS

_FILE = '''"""{title}

Made by `fuseopt show`. Runs the kernel on random inputs and compares it with PyTorch's operations.
"""

{imports}

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

{kernel}

# dtype, shape, strides, and for whole numbers what they stay below
INPUTS = {inputs}
OUTPUTS = {outputs}
LIMIT = {limit:.3g}  # allowed difference, relative to the largest element


{reference}
{constants}
def draw(dtype, shape, strides, below):
    """Return a random tensor of the given layout."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    if dtype.is_floating_point:
        flat = torch.randn(span, device=DEVICE, dtype=torch.float32).to(dtype)
    else:
        high = 2 if dtype == torch.bool else below
        flat = torch.randint(0, high, (span,), device=DEVICE).to(dtype)
    return flat.as_strided(shape, strides)


def main():
    torch.manual_seed(0)
    inputs = [draw(*spec) for spec in INPUTS]
    outputs = [
        torch.empty_strided(shape, strides, dtype=dtype, device=DEVICE)
        for dtype, shape, strides in OUTPUTS
    ]
    expected = reference({self}, *inputs{reference_sizes})
{launches}
    for number, (got, want) in enumerate(zip(outputs, expected)):
        got, want = got.double(), want.double()
        same = (got == want) | (got.isnan() & want.isnan())
        away = torch.where(same, 0.0, (got - want).abs())
        largest = want.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp_min(1e-30)
        error = (away.max() / largest).item()
        print(f"output {{number}} {{list(got.shape)}}: largest difference {{error:.2e}}")
        assert error <= LIMIT, f"more than {{LIMIT:.2e}}"
    print(f"agrees with PyTorch on {{DEVICE}}")


if __name__ == "__main__":
    main()
'''

_CONSTANTS = '''
def stored(dtype, shape, data):
    """Return a constant of the model."""
    raw = bytearray(zlib.decompress(base64.b64decode(data)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape).to(DEVICE)


class Constants:
    """What the original operations read besides their inputs."""

{lines}

'''

_LIBDEVICE = '''
if DEVICE == "cpu":

    class libdevice:
        """PyTorch's functions in place of NVIDIA's, for the interpreter."""

        @staticmethod
        def call(name, *operands):
            from triton.runtime.interpreter import TensorHandle

            values, element = [], None
            for operand in operands:
                if hasattr(operand, "handle"):
                    element = operand.dtype
                    values.append(torch.from_numpy(operand.handle.data.copy()))
                else:
                    values.append(torch.tensor(operand))
            result = getattr(torch, name)(*values).numpy()
            kind = tl.core.block_type(element, list(result.shape)) if result.ndim else element
            return tl.core.tensor(TensorHandle(result, element), kind)

{functions}
else:
    from triton.language.extra import libdevice
'''

_IMPORT = "from triton.language.extra import libdevice\n"
# Where torch has another name than libdevice.
_TORCH_NAMES = {"rint": "round", "fast_dividef": "divide", "fast_expf": "exp"}


def standalone(title: str, site: Site, candidate: Candidate) -> str:
    """Return the file for a site, with its kernel as printed for one schedule."""
    kernel = site.region.kernel
    hints = site.hints
    limits = index_limits(kernel)
    inputs = [
        (*_layout(p, hints), dims.hint(limits[n], hints) if n in limits else 8)
        for n, p in enumerate(kernel.inputs)
    ]
    sizes = [dims.hint(s, hints) for _, s in site.region.symbols]
    unchecked = without_refusals(site.reference)
    reference, constants = _reference(unchecked), _constants(unchecked)
    return _FILE.format(
        title=title,
        imports=_imports(reference, constants),
        kernel="\n\n".join(_kernel_text(s.text) for s in candidate.sources),
        inputs=_rows(inputs),
        outputs=_rows([_layout(p, hints) for p in kernel.outputs]),
        limit=3 * max(LIMITS.get(p.dtype, 0.0) for p in kernel.outputs),
        reference=reference,
        constants=constants,
        self="Constants" if constants else "None",
        reference_sizes="".join(f", {s}" for s in sizes),
        launches="\n".join(_launches(candidate, hints)),
    )


def _launches(candidate: Candidate, hints: dict[Any, int]) -> list[str]:
    """The statements that run a kernel, and the one that completes its totals."""
    lines = []
    names = []
    for number, scratch in enumerate(candidate.scratch(hints)):
        names.append(f"scratch{number}")
        make = "zeros" if scratch.zeroed else "empty"
        options = f"dtype={scratch.dtype}, device=DEVICE"
        lines.append(f"    {names[-1]} = torch.{make}({scratch.count}, {options})")
    lines.append(_launch(candidate, hints, ["*inputs", "*outputs"], names))
    if candidate.last is not None:
        lines.append(_launch(candidate.last, hints, ["*inputs", *names, "*outputs"], []))
    return lines


def _launch(
    candidate: Candidate, hints: dict[Any, int], tensors: list[str], scratch: list[str]
) -> str:
    source = candidate.source
    arguments = [*tensors, *(str(hints[s]) for s in candidate.symbols), *scratch]
    arguments += [f"{name}={value}" for name, value in source.constexprs]
    arguments += [f"num_warps={source.num_warps}", f"num_stages={source.num_stages}"]
    arguments += ["enable_fp_fusion=True"]  # as we compile; Triton's default changes after 3.9
    if source.registers:
        arguments.append(f"maxnreg={source.registers}")
    text = ", ".join(arguments)
    return f"    {source.name}[({candidate.grid(hints)},)](\n        {text}\n    )"


def _imports(reference: str, constants: str) -> str:
    modules = ["base64", "os", "zlib"] if constants else ["os"]
    lines = [f"import {m}" for m in modules]
    used = [n for n in ("inf", "nan") if re.search(rf"\b{n}\b", reference)]
    if used:
        lines.append(f"from math import {', '.join(used)}")
    return "\n".join(lines)


def _layout(param: TensorParam, hints: dict[Any, int]) -> tuple[Any, ...]:
    shape = tuple(dims.hint(s, hints) for s in param.shape)
    return param.dtype, shape, tuple(dims.hint(s, hints) for s in param.strides)


def _rows(rows: list[tuple[Any, ...]]) -> str:
    lines = [f"    {row!r}," for row in rows]
    return "\n".join(["[", *lines, "]"]) if lines else "[]"


def _kernel_text(text: str) -> str:
    _, _, body = text.partition('"""\n')  # the docstring is one line, then a blank one
    called = sorted(set(re.findall(r"\blibdevice\.(\w+)\(", body)))
    functions = "\n".join(
        f'        {n} = staticmethod(lambda *o: libdevice.call("{_TORCH_NAMES.get(n, n)}", *o))'
        for n in called
    )
    return body.replace(_IMPORT, _LIBDEVICE.format(functions=functions)).strip()


def _reference(gm: torch.fx.GraphModule) -> str:
    code = gm.code.strip().replace("def forward(", "def reference(", 1)
    return re.sub(r"device\(type='\w+'(?:, index=\d+)?\)", "DEVICE", code) + "\n"


def _constants(gm: torch.fx.GraphModule) -> str:
    lines = []
    for node in gm.graph.find_nodes(op="get_attr"):
        value = getattr(gm, str(node.target)).detach().cpu().contiguous()
        raw = value.reshape(-1).view(torch.uint8).numpy().tobytes()
        data = base64.b64encode(zlib.compress(raw)).decode()
        lines.append(f"    {node.target} = stored({value.dtype}, {tuple(value.shape)}, {data!r})")
    return _CONSTANTS.format(lines="\n".join(lines)) if lines else ""
