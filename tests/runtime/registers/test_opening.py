"""The register that a federation's file names, or the sentence in which it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.runtime.etcd import write_certificates
from tramfl.notation import BadInput
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.settings import read_federation


class TestOpening:
    """What a federation's file may name."""

    def refusal(self, tmp_path: Path, **register: Any) -> str:
        sites = [{"name": "a", "address": "127.0.0.1:7400"}]
        path = tmp_path / "federation.toml"
        path.write_text(tomli_w.dumps({"name": "f", "site": sites, "register": register}))
        with pytest.raises(BadInput) as caught:
            open_register(read_federation(path), "a")
        message = str(caught.value)
        assert str(path) in message
        assert message.endswith(".")
        assert "\n" not in message
        return message

    def test_a_register_in_no_folder_is_refused(self, tmp_path: Path) -> None:
        assert "nowhere" in self.refusal(tmp_path, path="nowhere/register.sqlite")

    @pytest.mark.parametrize("key", ["authorities", "certificate", "key", "password_file"])
    def test_a_missing_file_is_named(self, tmp_path: Path, key: str) -> None:
        write_certificates(tmp_path, ["127.0.0.1"])
        (tmp_path / "password").write_text("word\n")
        files = {"authorities": "ca.crt", "certificate": "etcd.crt", "key": "etcd.key", "password_file": "password"}
        settings = {"kind": "etcd", "endpoints": ["https://127.0.0.1:1"], "user": "site", **files, key: "absent"}
        message = self.refusal(tmp_path, **settings)
        assert f"register.{key}" in message
        assert str(tmp_path / "absent") in message

    def test_files_that_are_no_certificates_are_named(self, tmp_path: Path) -> None:
        write_certificates(tmp_path, ["127.0.0.1"])
        (tmp_path / "text").write_text("no certificate\n")
        there = {"kind": "etcd", "endpoints": ["https://127.0.0.1:1"]}
        assert "text" in self.refusal(tmp_path, **there, authorities="text")
        assert "text" in self.refusal(tmp_path, **there, certificate="etcd.crt", key="text")
        assert "belong together" in self.refusal(tmp_path, **there, certificate="etcd.crt")

    def test_a_user_needs_a_password_file(self, tmp_path: Path) -> None:
        message = self.refusal(tmp_path, kind="etcd", endpoints=["https://127.0.0.1:1"], user="site")
        assert "register.password_file" in message

    @pytest.mark.parametrize("endpoint", ["127.0.0.1:2379", "ftp://a:1", "https://", "https://a:1/v3", "https://a:x"])
    def test_what_is_no_endpoint_is_named(self, tmp_path: Path, endpoint: str) -> None:
        assert repr(endpoint) in self.refusal(tmp_path, kind="etcd", endpoints=[endpoint])

    def test_plaintext_is_for_loopback_only(self, tmp_path: Path) -> None:
        message = self.refusal(tmp_path, kind="etcd", endpoints=["http://127.0.0.1:1", "http://192.0.2.1:2379"])
        assert "192.0.2.1" in message
