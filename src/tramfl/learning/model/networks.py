"""The networks: a small one for digits, the paper's CNN, ResNet-18, and the user's own.

Those that have a name end in logits. A network's first weights follow from its seed alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tramfl.learning.model.weights import State, load_into, read_file
from tramfl.learning.seeding import seeded, seeded_everywhere
from tramfl.notation import BadInput
from tramfl.references import call_with_known, is_reference, referred, users_code

Shape = tuple[int, int, int]
"""Channels, height, width."""


class DigitsMlp(nn.Module):
    """One hidden layer on the flattened image: enough for 8 x 8 digits, and quick."""

    def __init__(self, classes: int, input_shape: Shape, hidden: int = 64) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.fc1 = nn.Linear(channels * height * width, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.fc2(functional.relu(self.fc1(images.flatten(1))))
        return logits


class MnistCnn(nn.Module):
    """The paper's CNN for MNIST: two valid 3 x 3 convolutions, pooling, two dense layers, dropout 0.25 twice."""

    def __init__(self, classes: int, input_shape: Shape) -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < 6:
            raise BadInput(f"training.network = 'mnist-cnn' needs images of 6 x 6 or more, not {height} x {width}.")
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dropout2 = nn.Dropout(0.25)
        self.fc2 = nn.Linear(128, classes)
        for convolution in (self.conv1, self.conv2):
            # On a CPU these convolutions run 1.3 times as fast with channels last in memory; same numbers.
            convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps = functional.relu(self.conv2(functional.relu(self.conv1(images))))
        maps = self.dropout1(functional.max_pool2d(maps, 2))
        logits: Tensor = self.fc2(self.dropout2(functional.relu(self.fc1(maps.flatten(1)))))
        return logits


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, as in He et al. 2016, figure 2."""

    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, leaving, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(leaving)
        self.conv2 = nn.Conv2d(leaving, leaving, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(leaving)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or entering != leaving:
            projection = nn.Conv2d(entering, leaving, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(leaving))

    def forward(self, maps: Tensor) -> Tensor:
        """The block's feature maps."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        residual = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(maps)))))
        return functional.relu(residual + shortcut)


class ResNet18(nn.Module):
    """ResNet-18 for ImageNet (He et al. 2016, table 1), its parameters named as torchvision names them."""

    def __init__(self, classes: int, input_shape: Shape) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(ResidualBlock(64, 64, 1), ResidualBlock(64, 64, 1))
        self.layer2 = nn.Sequential(ResidualBlock(64, 128, 2), ResidualBlock(128, 128, 1))
        self.layer3 = nn.Sequential(ResidualBlock(128, 256, 2), ResidualBlock(256, 256, 1))
        self.layer4 = nn.Sequential(ResidualBlock(256, 512, 2), ResidualBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 3, 2, padding=1)
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        logits: Tensor = self.fc(maps.mean(dim=(2, 3)))
        return logits


NETWORKS: dict[str, Callable[[int, Shape], nn.Module]] = {
    "digits-mlp": DigitsMlp,
    "mnist-cnn": MnistCnn,
    "resnet18": ResNet18,
}
_PART = 50
"""Samples of one forward pass of a test: what the layers write for so few stays in a core's cache."""
_NETWORK_OF = {"digits": "digits-mlp", "mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn", "cifar10": "resnet18"}


def network_for(dataset: str, input_shape: Any) -> str:
    """What `training.network = "auto"` means for a data set: by its name, else by the shape of its images."""
    if dataset in _NETWORK_OF:
        return _NETWORK_OF[dataset]
    channels, height, width = _image_shape("auto", input_shape)
    if channels == 3 and min(height, width) >= 32:
        return "resnet18"
    if channels == 1 and min(height, width) >= 20:
        return "mnist-cnn"
    return "digits-mlp"


def build_network(
    name: str, *, classes: int, input_shape: Any, weights: Path | None = None, seed: int, own: Any = None
) -> nn.Module:
    """A network of `NETWORKS` or the user's own, its first weights from `seed` or from a file.

    `own` is a module or a factory of the user's, which `name` then only describes.
    """
    if own is None and name in NETWORKS:
        shape = _image_shape(name, input_shape)
        with seeded(seed):
            network = NETWORKS[name](classes, shape)
    elif own is None and not is_reference(name):
        known = ", ".join(NETWORKS)
        raise BadInput(f"training.network = {name!r}: use auto, {known} or package.module:factory.")
    else:
        with seeded_everywhere(seed):
            found = own if own is not None else referred(name, "training.network")
            network = _own_network(found, classes, input_shape, name)
    if weights is not None:
        load_pretrained(network, weights)
    return network


def _image_shape(name: str, shape: Any) -> Shape:
    if not isinstance(shape, tuple) or len(shape) != 3 or not all(isinstance(side, int) for side in shape):
        raise BadInput(
            f"training.network = {name!r} is for images of channels x height x width, and a sample is {shape}: give a"
            " model of your own."
        )
    channels, height, width = shape
    return channels, height, width


def _own_network(found: object, classes: int, input_shape: Any, name: str) -> nn.Module:
    """The user's module: what their factory makes, or a copy of the module they gave."""
    if isinstance(found, nn.Module):
        return copy.deepcopy(found)
    with users_code(f"training.network = {name!r}"):
        made = call_with_known(found, classes=classes, input_shape=input_shape) if callable(found) else found
    if not isinstance(made, nn.Module):
        raise BadInput(f"training.network = {name!r}: it gave a {type(made).__name__}, not a torch.nn.Module.")
    return copy.deepcopy(made)  # training must not change what the user keeps, or a second run would begin trained


def load_pretrained(network: nn.Module, path: Path) -> None:
    """Start from a checkpoint; a last layer with another number of outputs stays as initialised."""
    state = read_file(path)
    own = network.state_dict()
    for name in _last_layer(own):
        if name in state and state[name].shape[1:] == own[name].shape[1:] and len(state[name]) != len(own[name]):
            state[name] = own[name]
    load_into(network, state, str(path))


def _last_layer(state: State) -> list[str]:
    layer = list(state)[-1].rpartition(".")[0]
    return [name for name in state if name.rpartition(".")[0] == layer and state[name].ndim > 0]


def outputs_of(network: nn.Module, inputs: Any) -> Any:
    """What a network gives for a batch: its `logits` where it has some. Inputs by name are keyword arguments."""
    given = network(**inputs) if isinstance(inputs, Mapping) else network(inputs)
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Mapping) and "logits" in given:
        return given["logits"]
    return getattr(given, "logits", given)


def outputs_in_parts(network: nn.Module, inputs: Any) -> Any:
    """What `outputs_of` gives for a batch that a network is tested on; those of `NETWORKS` give it in less time.

    While it is tested, each of them computes a sample by itself. So the parts of a batch have the outputs of the
    whole, bit by bit. A user's own network may not, and gets the batch as it is.
    """
    if type(network) not in NETWORKS.values() or inputs.device.type != "cpu":
        return outputs_of(network, inputs)
    # Parts of equal size: a last part of one or two samples would have other last digits, by other loops.
    parts = inputs.tensor_split(max(1, math.ceil(len(inputs) / _PART)))
    return torch.cat([outputs_of(network, part) for part in parts])
