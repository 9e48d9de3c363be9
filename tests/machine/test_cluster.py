"""Clusters: texts, files, links, and all faults at once."""

from __future__ import annotations

import pytest

from autoshard.machine.cluster import ClusterError, Link, load_cluster

FILE = """
meshes = ["h100-8", "h100-8", "a100-8"]
[link]
bandwidth = 4e10
latency = 1e-5
[[links]]
between = [2, 0]
bandwidth = 2e10
latency = 2e-5
"""


def test_meshes_alike_are_joined_by_their_slowest_network():
    cluster = load_cluster("4 x v5p-16")
    assert [machine.name for machine in cluster.meshes] == ["v5p-16"] * 4
    assert cluster.alike
    assert cluster.chips == 64
    assert cluster.links[0][3] == Link(5e9, 2e-5, "DCN of v5p")
    assert cluster.links[2][2] is None
    whole = cluster.whole()
    assert whole is not None
    assert whole.chips == 64
    # 16 chips send 5 GB/s each.
    assert cluster.seconds(0, 1, 8e10) == pytest.approx(2e-5 + 1.0)
    assert cluster.seconds(1, 1, 8e10) == 0


def test_unlike_meshes_are_joined_at_the_slower_pace():
    cluster = load_cluster("2 x h100-8 + a100-8")
    assert cluster.kinds == (0, 0, 2)
    assert not cluster.alike
    assert cluster.whole() is None
    fast, slow = cluster.links[0][1], cluster.links[0][2]
    assert fast is not None
    assert slow is not None
    assert slow.bandwidth < fast.bandwidth
    assert slow.source == "InfiniBand of a100"
    assert slow == cluster.links[2][0]


def test_links_of_a_file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    cluster = load_cluster(str(path))
    assert cluster.links[0][1] == Link(4e10, 1e-5, str(path))
    assert cluster.links[0][2] == cluster.links[2][0] == Link(2e10, 2e-5, str(path))


def test_all_faults_of_a_text():
    with pytest.raises(ClusterError) as caught:
        load_cluster("0 x v5p-16 + 2 x")
    assert str(caught.value) == (
        "the meshes '0 x v5p-16 + 2 x':\n"
        "  * '0 x v5p-16' is not a mesh; write v5p-16, or 4 x v5p-16\n"
        "  * '2 x' is not a mesh; write v5p-16, or 4 x v5p-16"
    )
    with pytest.raises(ClusterError, match="there is one mesh; for one mesh use --machine"):
        load_cluster("v5p-16")
    with pytest.raises(ClusterError, match="no machine 'v5q-16'"):
        load_cluster("2 x v5q-16")


def test_all_faults_of_a_file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        'meshes = ["h100-8", "h100-8"]\nspeed = 3\n[link]\nbandwidth = 0\nlatency = "x"\n'
        "[[links]]\nbetween = [0, 2]\nbandwidth = 1e9\nlatency = 0\n"
    )
    with pytest.raises(ClusterError) as caught:
        load_cluster(str(path))
    assert str(caught.value) == (
        f"the meshes {str(path)!r}:\n"
        "  * 'speed' is unknown; known: meshes, link, links\n"
        "  * link: bandwidth is 0; give bytes/s, more than 0\n"
        "  * link: latency is 'x'; give seconds, 0 or more\n"
        "  * links[0]: between is [0, 2]; give two of the meshes 0 to 1"
    )
