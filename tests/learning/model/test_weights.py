from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from tramfl.learning.model.networks import ResNet18
from tramfl.learning.model.weights import about, digest, from_bytes, in_pieces, load_into, read_file, to_bytes
from tramfl.notation import BadInput


def test_weights_come_back_bit_for_bit_with_names_and_types() -> None:
    state = ResNet18(10, (3, 32, 32)).state_dict()
    back = from_bytes(to_bytes(state))
    assert set(back) == set(state)
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)


def test_equal_weights_give_equal_bytes_whatever_their_order_or_layout() -> None:
    state = {"b": torch.randn(4, 3, 5, 5), "a": torch.randn(7)}
    turned = {"a": state["a"], "b": state["b"].contiguous(memory_format=torch.channels_last)}
    assert to_bytes(state) == to_bytes(turned)
    assert digest(to_bytes(state)) == hashlib.sha256(to_bytes(turned)).hexdigest()


def test_pieces_are_a_file_of_every_type_and_layout_without_a_copy_of_the_weights() -> None:
    kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    state = {f"w{i}": torch.randn(3, 5).to(kind) for i, kind in enumerate(kinds)}
    state |= {"one": torch.tensor(7), "none": torch.empty(0, 4), "turned": torch.randn(4, 6).t()}
    content = b"".join(pieces := in_pieces(state, {"round": "3", "a": "b"}))
    back = from_bytes(content)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    assert about(content) == {"round": "3", "a": "b"}
    state["w0"].zero_()
    assert b"".join(pieces) != content


def test_tied_weights_are_written_under_both_names() -> None:
    shared = torch.randn(3, 3)
    back = from_bytes(to_bytes({"in": shared, "out": shared}))
    assert torch.equal(back["in"], back["out"])


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", to_bytes({"a": torch.zeros(9)})[:-4]])
def test_bytes_that_are_no_weights_are_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the weights cannot be read as safetensors"):
        from_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match=r"model\.safetensors cannot be read as safetensors"):
        read_file(tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match=r"none\.safetensors cannot be read: No such file"):
        read_file(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"weight": torch.zeros(2, 3)}, "x: the network's bias is not in it"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)}, "x: the network has no more"),
        ({"weight": torch.zeros(3, 3), "bias": torch.zeros(2)}, r"weight has shape \(3, 3\).*has \(2, 3\)"),
        ({"weight": torch.zeros(2, 3).double(), "bias": torch.zeros(2)}, r"weight is torch\.float64"),
    ],
)
def test_weights_of_another_network_are_refused_and_change_nothing(
    state: dict[str, torch.Tensor], complaint: str
) -> None:
    network = nn.Linear(3, 2)
    before = to_bytes(network.state_dict())
    with pytest.raises(BadInput, match=complaint):
        load_into(network, state, "x")
    assert to_bytes(network.state_dict()) == before


def test_a_checkpoint_may_wrap_its_weights_but_must_hold_tensors(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": {"a": torch.ones(2)}}, tmp_path / "wrapped.pth")
    assert torch.equal(read_file(tmp_path / "wrapped.pth")["a"], torch.ones(2))
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(BadInput, match=r"list\.pth does not hold a state dict"):
        read_file(tmp_path / "list.pth")
