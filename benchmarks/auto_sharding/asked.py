"""XLA's own auto-sharder as a peer: how it is run, and where its plans are kept.

XLA had a pass that solved for the shardings of all instructions (`use_auto_spmd_partitioning`,
`jax.jit(..., in_shardings=AUTO(mesh))`); later versions deleted it. It is run in an environment of
its own (`environment.py`) by `child.py`, over TPU devices that need not
be there. That takes minutes, so plans are kept by the hash of the question: program, sizes, mesh,
devices and versions. What a plan is, and how a step is annotated with it: `annotate.py`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auto_sharding.annotate import AutoPlan
from auto_sharding.environment import REQUIREMENTS, AutoShardingError, environment

if TYPE_CHECKING:
    from autoshard.machine.machine import Machine
    from autoshard.models.training import Step
    from autoshard.plan.plan import MeshShape

CHILD = Path(__file__).with_name("child.py")
FORMAT = 1
"""Of the child's answers; another one is another question."""

_PRESENT = ("JAX", "LIBTPU", "PJRT", "PYTHON", "TF", "TPU", "XLA_")
"""How variables begin that are set for the present JAX, or by it (the path of its libtpu)."""


class _EndedError(AutoShardingError):
    """It was ended from outside: for lack of memory, say."""


def question_of(
    row: Mapping[str, Any], step: Step, machine: Machine, mesh: MeshShape
) -> dict[str, Any]:
    """What `child.py` is asked for a row of `autoshard bench plans`.

    The pass is part of the TPU compiler: for other machines a pod of as many TPU v5p is taken.
    """
    import autoshard
    from autoshard.compiler.target import kind_of, target_of

    if kind_of(machine) != "tpu":
        machine = autoshard.load_machine(f"v5p-{machine.chips}")
    target = target_of(machine, mesh, "tpu")
    return {
        "program": row["program"],
        "layers": row["layers"],
        "sizes": list(row["sizes"]),
        "mesh": dict(zip(mesh.names, mesh.sizes, strict=True)),
        "topology": dict(target.topology),
        "devices": [list(device) for device in target.devices],
        "fingerprint": autoshard.trace(step.fn, *step.args, **step.options).fingerprint,
    }


def auto_plan(question: Mapping[str, Any], folder: Path, *, time_limit: float) -> AutoPlan:
    """The auto-sharder's plan, from `folder / "plans"` where it is kept.

    A failure is kept as well, until more time is given; but not one that came from outside.

    Args:
      question: see `child.py`; and `fingerprint`, that of the traced program.
      folder: of the environment and of the plans.
      time_limit: seconds that the old compiler may take.

    Raises:
      AutoShardingError: there is no environment, or the old compiler fails or takes too long.
    """
    asked = {**question, "requirements": REQUIREMENTS, "format": FORMAT}
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    plans = folder / "plans"
    plans.mkdir(parents=True, exist_ok=True)
    kept, failed = plans / key, plans / f"{key}.failed.json"
    if (kept / "plan.json").is_file():
        return read_plan(kept)
    if failed.is_file():
        failure = json.loads(failed.read_text())
        if failure["time_limit"] >= time_limit:
            raise AutoShardingError(failure["error"])
    python = environment(folder)
    with tempfile.TemporaryDirectory(dir=plans, prefix=".new-") as name:
        place = Path(name)
        try:
            _ask(python, question, place, time_limit)
        except _EndedError:
            raise
        except AutoShardingError as error:
            failed.write_text(json.dumps({"error": str(error), "time_limit": time_limit}))
            raise
        answer = place / "answer"
        answer.mkdir()
        (answer / "question.json").write_text(json.dumps(asked))
        module = (place / "module.hlo.pb").read_bytes()
        (answer / "module.hlo.pb.gz").write_bytes(gzip.compress(module, mtime=0))
        shutil.copy(place / "plan.json", answer)
        os.replace(answer, kept)
    return read_plan(kept)


def read_plan(kept: Path) -> AutoPlan:
    """The plan in a folder.

    Raises:
      AutoShardingError: it shards something in a way that mesh axes cannot say.
    """
    question = json.loads((kept / "question.json").read_text())
    answer = json.loads((kept / "plan.json").read_text())
    return AutoPlan.read(
        question["mesh"],
        answer["inputs"],
        answer["outputs"],
        module=gzip.decompress((kept / "module.hlo.pb.gz").read_bytes()),
        made_for=question["topology"]["topology_name"],
        seconds=answer["seconds"],
    )


def _ask(python: Path, question: Mapping[str, Any], folder: Path, time_limit: float) -> None:
    """Run the child; its answer lies in the folder."""
    import autoshard

    (folder / "question.json").write_text(json.dumps(question))
    # The package alone: beside it may lie a JAX that is not the old one.
    package = folder / "package"
    package.mkdir()
    (package / "autoshard").symlink_to(Path(autoshard.__file__).resolve().parent)
    child = subprocess.Popen(
        [str(python), "-P", str(CHILD), str(folder)],
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith(_PRESENT)},
            "PYTHONPATH": str(package),
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_MIN_LOG_LEVEL": "3",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that what it starts ends with it
    )
    start = time.monotonic()
    try:
        _, noise = child.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired as error:
        raise AutoShardingError(
            f"XLA's auto-sharder did not finish within {time_limit:g} s; give it longer with "
            "--auto-sharding-limit"
        ) from error
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    after = f"after {time.monotonic() - start:.0f} s"
    if child.returncode < 0:
        raise _EndedError(f"XLA's auto-sharder was ended by signal {-child.returncode} {after}")
    if child.returncode > 0:
        lines = [line.strip() for line in noise.splitlines() if line.strip()]
        said = lines[-1] if lines else "it said nothing"
        raise AutoShardingError(f"XLA's auto-sharder failed {after}: {said[:500]}")
