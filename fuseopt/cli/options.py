"""The arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

FORMS = "file.py:factory, package.module:factory, a .pt2 file or hf:NAME"

TargetName = Annotated[str, typer.Argument(metavar="TARGET", help=FORMS, show_default=False)]
TargetNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TARGET", help=FORMS, show_default=False),
]
Layers = Annotated[
    int | None, typer.Option(metavar="N", help="hf: number of layers.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="hf: a value of the configuration; otherwise an argument of the factory.",
        show_default=False,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", help="float32, bfloat16 (hf: default), float16 or float64."),
]
Batch = Annotated[int | None, typer.Option(metavar="N", help="hf: batch size.", show_default=False)]
Seq = Annotated[
    int | None, typer.Option(metavar="N", help="hf: number of tokens.", show_default=False)
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="cpu or cuda; the GPU where there is one.")
]
Task = Annotated[
    str | None, typer.Option(metavar="TASK", help="hf: base, encoder, causal-lm, masked-lm, ...")
]
Numerics = Annotated[
    str, typer.Option(metavar="fp32|eager", help="Precision of what kernels keep to themselves.")
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rules", metavar="FILE", help="A Python file with rules of your own.", show_default=False
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Check each kernel; on a CPU, interpreted.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 also for graph breaks and fallbacks.")
]
Time = Annotated[
    bool, typer.Option("--time", help="Measure a call of the original and the optimised model.")
]
CompileFor = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="ARCH",
        help="Compile the kernels for a GPU that need not be here: sm_80, sm_90, sm_100.",
        show_default=False,
    ),
]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the report as JSON.", show_default=False),
]
HtmlFile = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write the report as a page.", show_default=False),
]
NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        help="A node (add_3), an op (softmax), a module (layers.0.mlp) or a line (model.py:12).",
        show_default=False,
    ),
]
RegionName = Annotated[
    str,
    typer.Argument(
        metavar="REGION",
        help="A region of the report (g0r3) or a kernel's name.",
        show_default=False,
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write a file that runs on its own: the kernel, its inputs, a check against PyTorch.",
        show_default=False,
    ),
]
Interpret = Annotated[
    bool, typer.Option("--interpret", help="Run kernels on the CPU by Triton's interpreter: slow.")
]
Kernels = Annotated[
    str | None,
    typer.Option(
        "--kernels",
        metavar="SET",
        help="target: the rows of the project's targets; unseen: shapes nothing was tuned on; "
        "target-backward, unseen-backward: gradients of these.",
        show_default=False,
    ),
]
RowPattern = Annotated[
    str | None,
    typer.Option(
        "--rows", metavar="REGEX", help="Only rows whose name matches.", show_default=False
    ),
]
Providers = Annotated[
    list[str] | None,
    typer.Option(
        "--providers",
        "--provider",
        metavar="NAMES",
        help="Of eager, fuseopt, inductor, inductor-max, aten, liger and quack, with commas.",
        show_default=False,
    ),
]
Train = Annotated[
    bool,
    typer.Option("--train", help="Time training steps: forward, backward and AdamW's update."),
]
Budget = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Start no further row after this long.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says about a target and the compilation, as given."""

    target: str
    layers: int | None = None
    settings: tuple[str, ...] = ()
    dtype: str | None = None
    batch: int | None = None
    seq: int | None = None
    device: str | None = None
    task: str | None = None
    numerics: str = "fp32"
    rules: tuple[str, ...] = ()
    verify: bool = False
