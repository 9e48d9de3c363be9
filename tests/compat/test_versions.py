"""Versions of jaxlib that are tested, and that are not."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest

from autoshard import compat
from autoshard.compat import versions
from autoshard.program.trace import trace


@pytest.fixture
def installed(monkeypatch):
    """Another version of jaxlib, which nobody has been warned of."""

    def install(version: str) -> None:
        monkeypatch.setattr(versions.metadata, "version", lambda _: version)
        compat.warn_if_untested.cache_clear()

    yield install
    compat.warn_if_untested.cache_clear()


@pytest.mark.parametrize("version", ["0.13.0", "0.20.1.dev20270101", "1.0"])
def test_a_newer_version_is_said_once(installed, version):
    installed(version)
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.warns(UserWarning, match=rf"jaxlib {version} is newer than .* tested"):
        trace(jnp.sin, shape)
    trace(jnp.cos, shape)  # where a warning is an error


@pytest.mark.parametrize("version", ["0.10.2", "0.11.2", "0.12.0.1"])
def test_tested_versions_are_silent(installed, version):
    installed(version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compat.warn_if_untested()


def test_flags_that_are_gone_are_left_out(installed):
    flags = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
    installed("0.10.2")
    assert compat.known_flags(flags) == flags
    for later in ("0.11.0", "0.12.0.1", "0.14"):
        installed(later)
        assert list(compat.known_flags(flags)) == ["xla_backend_optimization_level"]


def test_loops_are_written_as_the_installed_version_does():
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x))
    assert compat.loops_are_inlined() == ("call @" not in loop.lower(1.0).as_text())


def test_flags_that_are_new_are_left_out_before(installed):
    flags = {"xla_gpu_experimental_use_collective_kernels": ""}
    installed("0.10.2")
    assert compat.known_flags(flags) == {}
    for later in ("0.11.0", "0.12.0.1", "0.14"):
        installed(later)
        assert compat.known_flags(flags) == flags


@pytest.mark.parametrize(
    ("libtpu", "chip", "left"),
    [
        ("0.0.42.1", "TPU v5p", 2),
        ("0.0.43.2", "TPU v5p", 1),
        ("0.0.50.1", "TPU v6e", 1),
        ("0.0.50.1", "TPU v5e", 2),
        ("0.0.60.dev20270101", "TPU7x", 1),
    ],
)
def test_what_a_newer_libtpu_refuses_is_left_out_but_on_v5e(installed, libtpu, chip, left):
    refused = "xla_tpu_enable_async_collective_fusion_fuse_all_gather"
    flags = {refused: True, "xla_enable_async_all_gather": True}
    installed(libtpu)
    found = compat.taken_on_tpu(flags, chip)
    assert len(found) == left
    assert (refused in found) == (left == 2)


def test_all_flags_are_taken_where_no_libtpu_is_there(monkeypatch):
    def version(name: str) -> str:
        raise versions.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "version", version)
    refused = {"xla_tpu_enable_async_collective_fusion_fuse_all_gather": True}
    assert compat.taken_on_tpu(refused, "TPU v5p") == refused
