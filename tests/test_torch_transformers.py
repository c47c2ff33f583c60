"""Models of Hugging Face's transformers with batch norm: gradients against float64."""

import copy

import pytest
from torch_helpers import dynamo, onedsl_torch, torch

tf = pytest.importorskip("transformers", reason="the extra `dev` is not installed")

pytestmark = [pytest.mark.slow, dynamo, pytest.mark.usefixtures("without_code")]

CONV = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
THREE = {"depths": [1, 1, 1], "key_dim": [8] * 3, "num_attention_heads": [1, 1, 2]}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}
CONFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": [8, 8],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 4],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
    "conv_depthwise_kernel_size": 7,
}
PATCHES = {"num_input_channels": 3, "patch_length": 8, "patch_stride": 4}
IMAGES, SOUND, SERIES = (
    ("pixel_values", 4, 3, 64, 64),
    ("input_values", 4, 400),
    ("past_values", 8, 32, 3),
)
# Model, configuration, and its input's name and shape.
MODELS = {
    "ResNetModel": (CONV, IMAGES),
    "RegNetModel": (CONV | {"groups_width": 8}, IMAGES),
    "MobileNetV1Model": ({"depth_multiplier": 0.05}, IMAGES),
    "MobileNetV2Model": ({"depth_multiplier": 0.1}, IMAGES),
    "LevitModel": (THREE | {"image_size": 64, "hidden_sizes": [16] * 3}, IMAGES),
    "MobileViTModel": (
        {"image_size": 64, "hidden_sizes": [16] * 3, "neck_hidden_sizes": [8] * 7},
        IMAGES,
    ),
    "SwiftFormerModel": (
        {"depths": [1] * 4, "embed_dims": [8, 8, 16, 16], "layer_scale_init_value": 1.0},
        IMAGES,
    ),
    "CvtModel": ({"embed_dim": [8, 16, 16], "num_heads": [1, 1, 2], "depth": [1, 2, 3]}, IMAGES),
    "SegformerForSemanticSegmentation": (SEGFORMER, IMAGES),
    "Wav2Vec2ConformerModel": (CONFORMER, SOUND),
    "PatchTSTModel": (PATCHES | {"d_model": 16, "num_attention_heads": 2, "ffn_dim": 32}, SERIES),
    "PatchTSMixerModel": (PATCHES | {"norm_mlp": "batchnorm"}, SERIES),
}
# inductor takes most of the time.
COMPILED = ("ResNetModel", "MobileNetV2Model", "PatchTSTModel")
CASES = [
    (name, layout)
    for name, (_, inputs) in MODELS.items()
    for layout in ("contiguous_format", "channels_last")[: 2 if inputs is IMAGES else 1]
]


def without_dropout(model):
    """Return a model in training whose results are not random."""
    for module in model.train().modules():
        for name in ("p", "dropout", "drop_prob", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def gradients(model, inputs, run):
    """Return the gradients of a random sum of the first output, by parameter."""
    output = next(t for t in run(**inputs).values() if torch.is_tensor(t) and t.requires_grad)
    factors = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    (output * factors.to(output.dtype)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest_error(found, exact):
    """Return the largest relative error. A gradient that is nearly 0 is compared with all."""
    assert found.keys() == exact.keys()
    norm = torch.stack([e.norm() for e in exact.values()]).norm()
    return max(
        float((found[name].double() - e).norm() / max(e.norm(), norm / 100))
        for name, e in exact.items()
    )


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_gradients(name, layout):
    """As exact as PyTorch's own, and by onedsl in all layers and both passes."""
    configuration, (port, *shape) = MODELS[name]
    torch.manual_seed(0)
    layout = getattr(torch, layout)
    kind = getattr(tf, name)
    model = without_dropout(kind(kind.config_class(**configuration))).to(memory_format=layout)
    src = torch.randn(shape).contiguous(memory_format=layout)
    reference = copy.deepcopy(model).double()
    exact = gradients(reference, {port: src.double()}, reference)

    def error(wrap):
        used = copy.deepcopy(model)
        with onedsl_torch.report(used) as summary:
            found = gradients(used, {port: src}, wrap(used))
        ours = [
            bool(counts) and all(key.startswith("onedsl") for key in counts)
            for counts in summary.calls().values()
        ]
        return largest_error(found, exact), ours

    own, none = error(lambda used: used)
    with onedsl_torch.enable():
        eager, in_eager = error(lambda used: used)
    assert not any(none)
    assert len(in_eager) == len(none) >= 2
    assert all(in_eager)
    assert eager < max(3 * own, 3e-5)
    if name in COMPILED:
        torch._dynamo.reset()
        compiled, in_compiled = error(lambda used: torch.compile(used, backend="onedsl"))
        assert len(in_compiled) == len(none)
        assert all(in_compiled)
        assert compiled < max(3 * own, 3e-5)
