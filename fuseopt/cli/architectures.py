"""`hf:NAME`: a transformers architecture from its default configuration, without weights.

Nothing is downloaded. To plan and check kernels only shapes are needed, so the model is made of
tensors without data: a 7-billion-parameter model takes a second and no memory. Where values are
needed (to run, or to trace what looks at values) the weights are random.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fuseopt.cli.quiet import quiet
from fuseopt.cli.targets import Choices, Target
from fuseopt.errors import UsageError
from fuseopt.pipeline import first_line

BATCH, TOKENS, IMAGE, SAMPLES = 1, 128, 224, 16000
TASKS = {
    "base": "AutoModel",
    "encoder": "AutoModelForTextEncoding",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
}
_LAYER_COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")


def load_architecture(text: str, choices: Choices) -> Target:
    """Make the model that `hf:NAME` names, with inputs of the size asked for."""
    _require_transformers()
    with quiet():
        config = make_config(text.removeprefix("hf:"), choices)
    if not choices.with_data:
        try:
            return _make(text, config, choices, with_data=False)
        except UsageError:
            raise
        except Exception:  # its code looks at values of tensors that have none
            pass
    return _make_with_data(text, config, choices)


# --- configuration -------------------------------------------------------------------------------


def make_config(name: str, choices: Choices) -> Any:
    """Return an architecture's default configuration with the changes asked for."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if name not in CONFIG_MAPPING:
        close = difflib.get_close_matches(name.lower(), list(CONFIG_MAPPING), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"transformers has no architecture {name!r}{hint}")
    make = CONFIG_MAPPING[name]
    try:
        default = make()
        changes = _layer_changes(name, default, choices.layers) | dict(choices.settings)
        for key in changes:
            _check_known(name, default, key)
        config = make(**{k: v for k, v in changes.items() if "." not in k})
        for key in (k for k in changes if "." in k):
            _set(config, key, changes[key])
    except UsageError:
        raise
    except Exception as error:  # each configuration checks values in its own way
        raise UsageError(f"the configuration of {name} raised {first_line(error)}") from error
    return config


def _layer_changes(name: str, config: Any, layers: int | None) -> dict[str, Any]:
    if layers is None:
        return {}
    changes = _layers_of(config, layers, "")
    if not changes:
        raise UsageError(
            f"--layers: the configuration of {name} has no number of layers; use --set"
        )
    return changes


def _layers_of(config: Any, layers: int, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    names = [n for n in _LAYER_COUNTS if isinstance(getattr(config, n, None), int)]
    mapped = getattr(config, "attribute_map", {})
    for name in names:
        if mapped.get(name) not in names:  # set once, under the name it is stored by
            found[prefix + name] = layers
    depths = getattr(config, "depths", None)
    if isinstance(depths, (list, tuple)):
        found = {prefix + "depths": [min(layers, d) for d in depths]}
    for part in _PARTS:
        inner = getattr(config, part, None)
        if hasattr(inner, "to_dict"):
            found |= _layers_of(inner, layers, f"{prefix}{part}.")
    return found


def _check_known(name: str, config: Any, key: str) -> None:
    *path, last = key.split(".")
    for part in path:
        config = getattr(config, part, None)
    if config is None or not (hasattr(config, last) or last == "attn_implementation"):
        close = difflib.get_close_matches(last, list(config.to_dict() if config else ()), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"--set {key}: the configuration of {name} has no such value{hint}")


def _set(config: Any, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        config = getattr(config, part)
    setattr(config, last, value)


# --- model and inputs ----------------------------------------------------------------------------


def _make_with_data(text: str, config: Any, choices: Choices) -> Target:
    try:
        return _make(text, config, choices, with_data=True)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"making {text} raised {first_line(error)}; write a factory") from error


def _make(text: str, config: Any, choices: Choices, *, with_data: bool) -> Target:
    dtype = choices.dtype or torch.bfloat16
    task = choices.task or _default_task(config)
    mode: Any = nullcontext()
    if not with_data:
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with quiet(), mode, torch.device(choices.device), _initialised(with_data):
        model = _model(text, config, task, dtype)
        kwargs = example_inputs(model, choices, dtype)
    return Target(
        text,
        model,
        (),
        kwargs,
        _about(model, kwargs, dtype),
        has_data=with_data,
        remake=partial(_make_with_data, text, config, choices),
    )


def _model(text: str, config: Any, task: str, dtype: torch.dtype) -> Any:
    import transformers

    if task not in TASKS:
        raise UsageError(f"--task {task!r} is not one of {', '.join(TASKS)}")
    auto = getattr(transformers, TASKS[task])
    if type(config) not in auto._model_mapping:
        raise UsageError(f"{text} has no model for the task {task}")
    torch.manual_seed(0)
    return auto.from_config(config, dtype=dtype).eval()


def _default_task(config: Any) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

    has_encoder = type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
    return "encoder" if has_encoder and config.is_encoder_decoder else "base"


def example_inputs(model: Any, choices: Choices, dtype: torch.dtype) -> dict[str, Any]:
    """Return keyword inputs for a model, by the names that its forward takes."""
    config = model.config
    takes = inspect.signature(model.forward).parameters
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or TOKENS
    batch, tokens = choices.batch or BATCH, choices.seq or min(TOKENS, longest)
    makers = _makers(config, batch, tokens, dtype)
    main = model.main_input_name
    if main not in makers:
        raise UsageError(f"fuseopt does not know how to make the input {main!r}; write a factory")
    wanted = {main, *_also_needed(config, takes)}
    made: dict[str, Any] = {name: makers[name]() for name in makers if name in wanted}
    if "use_cache" in takes:
        made["use_cache"] = False
    return made


def _also_needed(config: Any, takes: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        yield "decoder_input_ids"
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        yield from (n for n in ("input_ids", "pixel_values") if n in takes)
    for name, parameter in takes.items():
        if parameter.default is inspect.Parameter.empty:
            yield name


def _makers(
    config: Any, batch: int, tokens: int, dtype: torch.dtype
) -> dict[str, Callable[[], torch.Tensor]]:
    vision = getattr(config, "vision_config", config)
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", 0) or 1000
    side = getattr(vision, "image_size", None) or IMAGE
    sides = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
    channels = getattr(vision, "num_channels", 3) or 3
    mel = (getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500))

    def ids() -> torch.Tensor:
        return torch.randint(0, vocabulary, (batch, tokens))

    return {
        "input_ids": ids,
        "decoder_input_ids": ids,
        "pixel_values": lambda: torch.randn(batch, channels, *sides, dtype=dtype),
        "input_values": lambda: torch.randn(batch, SAMPLES, dtype=dtype),
        "input_features": lambda: torch.randn(batch, *mel, dtype=dtype),
    }


def _about(model: Any, kwargs: Mapping[str, Any], dtype: torch.dtype) -> str:
    shapes = [
        f"{name} {list(value.shape)}"
        for name, value in kwargs.items()
        if isinstance(value, torch.Tensor)
    ]
    count = sum(p.numel() for p in model.parameters())
    size = f"{count / 1e9:.2f} billion" if count > 1e9 else f"{count / 1e6:.1f} million"
    kind = str(dtype).removeprefix("torch.")
    return f"{type(model).__name__}, {size} parameters, {kind}, {', '.join(shapes)}"


# --- transformers --------------------------------------------------------------------------------


def _require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise UsageError(f"hf: targets need the package transformers ({error})") from None


@contextmanager
def _initialised(with_data: bool) -> Iterator[None]:
    """Leave out the initialisation of weights that have no values."""
    if with_data:
        yield
        return
    from transformers import initialization

    with initialization.no_init_weights():
        yield
