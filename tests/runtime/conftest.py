"""A cluster of etcd for the tests of a file: started once, healed before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.etcd import EtcdCluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: EtcdCluster) -> EtcdCluster:
    """Three members in good health, whatever the test before did to them."""
    shared_cluster.heal()
    return shared_cluster
