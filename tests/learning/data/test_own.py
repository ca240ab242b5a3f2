"""The user's own data: arrays, tensors, memory maps, torch Datasets and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import tramfl
from tramfl.config import Partition
from tramfl.draws import generator
from tramfl.learning.data.fingerprint import fingerprint
from tramfl.learning.data.own import Data
from tramfl.learning.data.partition import divide, node_count
from tramfl.learning.data.parts import Arrays, Stream
from tramfl.notation import BadInput

RNG = np.random.default_rng(3)
INPUTS, LABELS = RNG.normal(size=(12, 4)), np.arange(12) % 3


class Listed(torch.utils.data.Dataset[Any]):
    """A data set that says its targets, as torchvision's do."""

    classes = ("ant", "bee", "cat")

    def __init__(self) -> None:
        self.targets = LABELS.tolist()
        self.read = 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.read += 1
        return torch.full((4,), float(index)), self.targets[index]


class Unlisted(Listed):
    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.targets = self.targets, []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), self.numbers[index]


def test_what_is_balanced_is_what_is_predicted_unless_strata_say_otherwise() -> None:
    data = Data((INPUTS, LABELS), (INPUTS, LABELS))
    assert data.classes == ("0", "1", "2")
    np.testing.assert_array_equal(data.strata, LABELS)
    assert (data.outputs, data.input_shape) == (3, (4,))
    by_region = Data((INPUTS, INPUTS[:, 0]), (INPUTS, INPUTS[:, 0]), strata=np.arange(12) % 2, classes=("n", "s"))
    assert by_region.label_counts.tolist() == [6, 6]
    assert by_region.outputs == 1
    both = Data((INPUTS, LABELS), (INPUTS, LABELS), strata=np.arange(12) % 2)
    assert (both.outputs, both.classes) == (3, ("0", "1"))


def test_strata_may_be_names_and_classes_give_their_order() -> None:
    names = np.where(np.arange(12) % 2, "west", "east")
    data = Data((INPUTS, LABELS), (INPUTS, LABELS), strata=names, classes=("west", "north", "east"))
    assert data.strata.tolist() == [2, 0] * 6
    assert Data((INPUTS, LABELS), (INPUTS, LABELS), strata=names).classes == ("east", "west")
    with pytest.raises(BadInput, match="there is a 'west', and classes has only east"):
        _ = Data((INPUTS, LABELS), (INPUTS, LABELS), strata=names, classes=("east",)).strata


def test_tensors_tables_by_name_and_tensor_datasets_are_arrays() -> None:
    tokens = {"ids": torch.zeros(12, 5, dtype=torch.int32), "mask": torch.ones(12, 5, dtype=torch.bool)}
    data = Data((tokens, torch.from_numpy(LABELS)), TensorDataset(torch.zeros(3, 5), torch.arange(3)))
    assert isinstance(data.train, Arrays)
    assert isinstance(data.test, Arrays)
    assert data.input_shape == {"ids": (5,), "mask": (5,)}
    assert data.strata.tolist() == LABELS.tolist()


def test_a_torch_dataset_that_lists_its_targets_is_not_read_for_its_strata() -> None:
    listed = Listed()
    data = Data(listed, Listed())
    assert isinstance(data.train, Stream)
    assert data.strata.tolist() == LABELS.tolist()
    assert data.classes == ("ant", "bee", "cat")
    assert listed.read == 1  # the first sample, for its shape
    part = Data(Subset(listed, [0, 1, 3]), Listed())
    assert part.strata.tolist() == [0, 1, 0]
    tensors = TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    several = Data(ConcatDataset([Subset(tensors, [4, 5]), listed, tensors]), Listed())
    assert several.strata.tolist() == [*LABELS[4:6].tolist(), *LABELS.tolist(), *LABELS.tolist()]


def test_a_torch_dataset_that_does_not_needs_strata_or_a_function() -> None:
    data = Data(Unlisted(), Listed())
    with pytest.raises(BadInput, match="does not list its targets, so what is balanced is not known; give strata="):
        _ = data.strata
    assert data.balanced_by(lambda sample: int(sample[0][0]) // 6).strata.tolist() == [0] * 6 + [1] * 6
    app = tramfl.App(data=data, balance=lambda sample: sample[1] % 2)
    found = app.dataset()
    assert found is not None
    assert found.strata.tolist() == (LABELS % 2).tolist()


@pytest.mark.parametrize("strata", [LABELS, np.arange(12) % 2])
def test_a_network_trains_on_classes_that_only_the_samples_know(strata: NDArray[np.int64]) -> None:
    data = Data(Unlisted(), Unlisted(), strata=strata)
    app = tramfl.App(model=torch.nn.Linear(4, 3), data=data)
    result = tramfl.simulate(app=app, rounds=2, settings={"partition": {"layout": "iid", "nodes": 2}})
    assert [row.round for row in result.rows] == [1, 2]
    assert result.summary.samples > 0
    assert not data.knows_outputs
    assert data.outputs == len(set(strata.tolist()))


def test_an_image_dataset_can_be_balanced_by_something_else_than_its_labels() -> None:
    images = np.zeros((12, 1, 4, 4), dtype=np.uint8)
    plain = tramfl.Dataset.from_arrays("i", images, LABELS, images, LABELS)
    found = tramfl.App(data=plain, balance=lambda sample: "odd" if sample[1] % 2 else "even").dataset()
    assert found is not None
    assert found.strata_names == ("even", "odd")
    assert found.outputs == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"train": (INPUTS, LABELS[:5])}, "train has 12 inputs and 5 targets"),
        ({"train": (INPUTS, LABELS, LABELS)}, r"train is a tuple of 3; give a pair \(inputs, targets\)"),
        ({"train": 3}, "train is a int; give a pair"),
        ({"train": (["a", "b"], [0, 1])}, "text must become token ids first"),
        ({"train": ([[1], [1, 2]], [0, 1])}, "the rows are not of one shape"),
        ({"train": (INPUTS, LABELS - 1)}, "has targets that are not whole numbers from 0"),
        ({"strata": LABELS[:5]}, "must be 12 whole numbers from 0"),
        ({"strata": INPUTS[:, 0]}, "must be 12 whole numbers from 0"),
        ({"classes": ("a",)}, "there is a stratum 2, but classes names only 1"),
        ({"node_of_sample": [0]}, "node_of_sample must be 12 whole numbers"),
        ({"test": (INPUTS[:0], LABELS[:0])}, "test has no samples"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        _ = Data(**{"train": (INPUTS, LABELS), "test": (INPUTS, LABELS), **arguments}).strata


def test_a_fingerprint_says_whether_data_is_the_same() -> None:
    def made(shift: float = 0.0, strata: Any = None) -> str:
        return fingerprint(Data((INPUTS + shift, LABELS), (INPUTS, LABELS), strata=strata))

    assert made() == made()
    assert len({made(), made(1e-9), made(strata=LABELS[::-1].copy())}) == 3


class Lazy(torch.utils.data.Dataset[Any]):
    """Samples of one value, each read with the noise that `noise` draws."""

    def __init__(self, value: float, noise: Callable[[], float] = float) -> None:
        self.value, self.noise = value, noise
        self.targets = LABELS

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.full((2,), self.value + self.noise()), int(LABELS[index])


def test_a_fingerprint_of_samples_that_are_read_lazily_sees_other_samples() -> None:
    def made(value: float, noise: Callable[[], float] = float) -> str:
        return fingerprint(Data(Lazy(value, noise), (INPUTS, LABELS)))

    assert made(1.0) == made(1.0) != made(2.0)
    augmented = [made(value, lambda: float(torch.rand(()))) for value in (1.0, 1.0, 2.0)]
    assert augmented[0] == augmented[1] != augmented[2], "what the samples draw from torch follows from a seed"
    unseeded = np.random.default_rng()
    restless = [made(value, lambda: float(unseeded.random())) for value in (1.0, 2.0)]
    assert restless[0] == restless[1], "samples that are never twice the same only count"


def test_hugging_face_datasets_are_read_as_they_are_used() -> None:
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features({"ids": datasets.Sequence(datasets.Value("int32")), "label": label})
    rows = {"ids": [[i, i + 1] for i in range(8)], "label": [i % 2 for i in range(8)]}
    table = datasets.Dataset.from_dict(rows, features=features)
    data = tramfl.App(data=datasets.DatasetDict(train=table, test=table)).dataset()
    assert isinstance(data, Data)
    assert isinstance(data.train, Stream)
    assert data.classes == ("no", "yes")
    assert data.strata.tolist() == [0, 1] * 4
    inputs, target = data.train.sample(3)
    assert inputs.tolist() == [3, 4]
    assert int(target) == 1
    with pytest.raises(BadInput, match="name the one to predict label"):
        Data(table.rename_column("label", "kind"), table)
    text = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(BadInput, match="the column 'text' is text; turn it into token ids"):
        Data(text, text)


# ---- an own split


def test_an_own_split_comes_from_the_data_or_from_a_file(tmp_path: Path) -> None:
    nodes = np.array([0, 0, 2, 2, 2, 0] * 2)
    np.save(tmp_path / "split.npy", nodes)
    (tmp_path / "split.txt").write_text("\n".join(map(str, nodes)))
    rng = generator(0, 1)
    own = Partition(layout="own", validation_share=0)
    expected = [np.flatnonzero(nodes == node).tolist() for node in range(3)]
    found = divide(LABELS, own, rng, nodes)
    assert [sorted(share.train.tolist()) for share in found] == expected
    for name in ("split.npy", "split.txt"):
        named = Partition(layout="own", validation_share=0, node_of_sample=str(tmp_path / name))
        assert [sorted(share.train.tolist()) for share in divide(LABELS, named, rng)] == expected
        assert node_count(named) == 3


def test_an_own_split_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    rng = generator(0, 1)
    with pytest.raises(BadInput, match=r"partition\.layout = 'iid', but the data says which node has each sample"):
        divide(LABELS, Partition(layout="iid", nodes=2), rng, LABELS)
    with pytest.raises(BadInput, match="needs the number of the node that has each sample"):
        divide(LABELS, Partition(layout="own"), rng)
    with pytest.raises(BadInput, match="has a node for 5 samples, and the data has 12"):
        divide(LABELS, Partition(layout="own"), rng, LABELS[:5])
    with pytest.raises(BadInput, match=r"nodes = 2: the data has a node 2"):
        divide(LABELS, Partition(layout="own", nodes=2), rng, LABELS)
    (tmp_path / "bad.txt").write_text("0\none\n")
    for name, words in {"bad.txt": "one whole number a line", "none.txt": "cannot be read"}.items():
        with pytest.raises(BadInput, match=words):
            divide(LABELS, Partition(layout="own", node_of_sample=str(tmp_path / name)), rng)


def test_a_dirichlet_divisions_limits_are_scenario_keys() -> None:
    labels = np.arange(600) % 3
    few = Partition(layout="dirichlet", nodes=6, alpha=0.05, min_partition_size=0)
    even = Partition(layout="dirichlet", nodes=6, alpha=0.05, min_partition_size=60, self_balancing=True)
    sizes = [[len(s.train) + len(s.validation) for s in divide(labels, p, generator(4, 1))] for p in (few, even)]
    assert min(sizes[0]) < 60 <= min(sizes[1])
    shards = Partition(layout="shard", nodes=3, shards_per_node=2, shard_size=10, validation_share=0)
    assert [len(share.train) for share in divide(labels, shards, generator(4, 1))] == [20, 20, 20]
    given = Partition(layout="pathological", nodes=3, classes_per_node=1, class_assignment="deterministic")
    assert [set(labels[s.train].tolist()) for s in divide(labels, given, generator(4, 1))] == [{0}, {1}, {2}]
