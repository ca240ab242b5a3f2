from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from tramfl.learning.model.networks import (
    NETWORKS,
    MnistCnn,
    ResNet18,
    build_network,
    network_for,
    outputs_in_parts,
    outputs_of,
)
from tramfl.learning.model.weights import to_bytes
from tramfl.notation import BadInput


def torchvision_shapes(classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's resnet18, written down apart from the network."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)}

    def norm(name: str, width: int) -> None:
        shapes.update({f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    width_before = 64
    for layer, width in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = (width, width_before, 3, 3)
            norm(f"{name}.bn1", width)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if layer > 1 and block == 0:
                shapes[f"{name}.downsample.0.weight"] = (width, width_before, 1, 1)
                norm(f"{name}.downsample.1", width)
            width_before = width
    return {**shapes, "fc.weight": (classes, 512), "fc.bias": (classes,)}


def test_resnet18_has_the_names_and_shapes_of_torchvision() -> None:
    own = {name: tuple(tensor.shape) for name, tensor in ResNet18(1000, (3, 224, 224)).state_dict().items()}
    assert own == torchvision_shapes(1000)
    assert sum(weight.numel() for weight in ResNet18(1000, (3, 224, 224)).parameters()) == 11_689_512


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_checkpoint_of_imagenet_loads_and_only_its_last_layer_is_replaced(suffix: str, tmp_path: Path) -> None:
    state = {name: torch.randn(shape) for name, shape in torchvision_shapes(1000).items()}
    for name in state:
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
    path = tmp_path / f"resnet18{suffix}"
    if suffix == ".pth":
        torch.save(state, path)
    else:
        path.write_bytes(to_bytes(state))
    network = build_network("resnet18", classes=10, input_shape=(3, 32, 32), weights=path, seed=1)
    fresh = build_network("resnet18", classes=10, input_shape=(3, 32, 32), seed=1).state_dict()
    for name, tensor in network.state_dict().items():
        expected = fresh[name] if name.startswith("fc.") else state[name]
        assert torch.equal(tensor, expected), name


def test_a_checkpoint_with_as_many_classes_keeps_its_last_layer(tmp_path: Path) -> None:
    trained = build_network("digits-mlp", classes=10, input_shape=(1, 8, 8), seed=1)
    (tmp_path / "own.safetensors").write_bytes(to_bytes(trained.state_dict()))
    loaded = build_network(
        "digits-mlp", classes=10, input_shape=(1, 8, 8), weights=tmp_path / "own.safetensors", seed=2
    )
    assert to_bytes(loaded.state_dict()) == to_bytes(trained.state_dict())


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mlp.safetensors").write_bytes(to_bytes(nn.Linear(3, 2).state_dict()))
    with pytest.raises(BadInput, match=r"mlp\.safetensors: the network's conv1\.weight \(and 7 more\) is not in it"):
        build_network("mnist-cnn", classes=10, input_shape=(1, 28, 28), weights=tmp_path / "mlp.safetensors", seed=0)


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code from a checkpoint ran",))


def test_code_in_a_checkpoint_never_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"conv1.weight": _Trap()}, tmp_path / "trap.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(_Trap(), protocol=2))
    for name in ("trap.pth", "plain.pth"):
        with pytest.raises(BadInput, match=rf"{name} is not a checkpoint of plain weights"):
            build_network("resnet18", classes=10, input_shape=(3, 32, 32), weights=tmp_path / name, seed=0)
    assert "ran" not in capsys.readouterr().out


def test_the_cnn_of_the_paper_is_built_as_written() -> None:
    network = MnistCnn(10, (1, 28, 28))
    shapes = [tuple(weight.shape) for weight in network.parameters()]
    assert shapes == [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (128, 9216), (128,), (10, 128), (10,)]
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.25, 0.25]


@pytest.mark.parametrize("name", ["digits-mlp", "mnist-cnn", "resnet18"])
def test_first_weights_follow_from_the_seed_and_leave_torchs_own_draws_alone(name: str) -> None:
    def built(seed: int) -> bytes:
        return to_bytes(build_network(name, classes=10, input_shape=(3, 32, 32), seed=seed).state_dict())

    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    assert built(1) == built(1)
    assert built(1) != built(2)
    assert torch.equal(torch.rand(3), expected)


def test_auto_goes_by_name_and_then_by_shape() -> None:
    assert network_for("cifar10", (3, 32, 32)) == "resnet18"
    assert network_for("fashion-mnist", (1, 28, 28)) == "mnist-cnn"
    assert network_for("npz:own", (3, 64, 64)) == "resnet18"
    assert network_for("npz:own", (1, 28, 28)) == "mnist-cnn"
    assert network_for("npz:own", (2, 5, 5)) == "digits-mlp"


OWN_MODULE = """
from torch import nn
def plain(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
def asked(classes, input_shape): return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] ** 2, classes))
def nothing(): return None
ready = plain()
"""


def test_the_users_own_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_network_module.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)

    def build(name: str) -> nn.Module:
        return build_network(f"own_network_module:{name}", classes=3, input_shape=(1, 4, 4), seed=0)

    for name in ("plain", "asked", "ready"):
        assert build(name)(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    for name, complaint in {
        "nothing": "it gave a NoneType",
        "absent": "has no 'absent'",
    }.items():
        with pytest.raises(BadInput, match=complaint):
            build(name)


def test_an_unknown_network_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="'vgg': use auto, digits-mlp, mnist-cnn, resnet18 or"):
        build_network("vgg", classes=10, input_shape=(1, 8, 8), seed=0)
    with pytest.raises(BadInput, match="6 x 6 or more, not 5 x 9"):
        build_network("mnist-cnn", classes=10, input_shape=(1, 5, 9), seed=0)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("samples", [1, 50, 51, 105, 250])
def test_a_test_in_parts_gives_the_bits_of_the_whole_batch(name: str, samples: int) -> None:
    shape = {"digits-mlp": (1, 8, 8), "mnist-cnn": (1, 28, 28), "resnet18": (3, 32, 32)}[name]
    network = build_network(name, classes=10, input_shape=shape, seed=3).eval()
    inputs = torch.randn(samples, *shape, generator=torch.Generator().manual_seed(samples))
    with torch.inference_mode():
        assert torch.equal(outputs_in_parts(network, inputs), outputs_of(network, inputs))


def test_a_users_own_network_is_tested_on_whole_batches() -> None:
    class Ranks(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs - inputs.mean(0)

    inputs = torch.arange(120.0).reshape(60, 2)
    assert torch.equal(outputs_in_parts(Ranks(), inputs), inputs - inputs.mean(0))
