"""The report of a plan as one HTML file that asks the network for nothing.

The first screen answers five questions (`autoshard.show.verdict`); below stand proof and bounds,
well-known schemes, memory over time, compute, collectives, layouts, sensitivity, verification, and
the assumptions with their sources. What needs the program and the machine is left out without them,
and the page says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.plan.plan import Plan
from autoshard.show import sections
from autoshard.show.details import (
    advice_section,
    compute_section,
    host_section,
    memory_section,
    sensitivity_section,
)
from autoshard.show.document import document, fragment, head, versions
from autoshard.show.html import Column, Markup, element, join, table
from autoshard.show.profile import Profile
from autoshard.show.robust_section import robust_section
from autoshard.show.sensitivity import gains
from autoshard.show.sources import figures
from autoshard.show.verdict import Verdict, verdict
from autoshard.study.advice import Advice
from autoshard.study.robust.record import Robust
from autoshard.units import counted


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What a report is made of.

    Attributes:
      plan: whose report it is.
      profile: the plan op by op, or None where the program or the machine is not known.
      machine_text: the machine's file, or None.
      verification: what `autoshard verify --json` printed, or None.
      missing: why something is left out, in the user's words.
      advice: what can be done about the step, the best first.
      robust: what ranges of the machine's numbers mean (`autoshard.robust`), or None.
    """

    plan: Plan
    profile: Profile | None = None
    machine_text: str | None = None
    verification: Mapping[str, Any] | None = None
    missing: tuple[str, ...] = ()
    robust: Robust | None = None
    advice: tuple[Advice, ...] = ()


def page(material: Material) -> str:
    """The whole report as an HTML document."""
    plan, found = material.plan, material.profile
    ranked = () if found is None else gains(found)
    told = verdict(plan, found, ranked, material.verification, material.advice)
    body = [
        ("proof", "Proof and bounds", join(sections.bounds(plan), sections.meshes(plan))),
        ("schemes", "Well-known schemes", sections.baselines(plan)),
        ("advice", "What you can do", advice_section(plan, material.advice)),
        ("memory", "Memory", None if found is None else memory_section(found)),
        ("compute", "Compute", None if found is None else compute_section(found)),
        ("collectives", "Collectives", sections.collectives(plan)),
        ("host", "Memory of the host", host_section(plan, found)),
        ("layouts", "Layouts", sections.layouts(plan)),
        ("requirements", "Requirements", sections.requirements(plan)),
        ("sensitivity", "Sensitivity", sensitivity_section(plan, ranked) if ranked else None),
        (
            "robust",
            "What is not known of the machine",
            None if material.robust is None else robust_section(material.robust),
        ),
        ("verification", "Verification", sections.verification(material.verification)),
        ("assumptions", "Assumptions and their sources", _assumptions(material)),
        ("versions", "Versions", _versions(plan)),
    ]
    title = f"{plan.program} on {plan.machine}"
    return document(title, _head(plan, told, material.missing), body)


def plan_fragment(plan: Plan) -> str:
    """What a notebook shows of a plan: the verdict, the schemes, the layouts."""
    return fragment(
        _head(plan, verdict(plan), ()),
        sections.baselines(plan),
        element("h3", "Layouts"),
        sections.layouts(plan),
    )


def _head(plan: Plan, told: Verdict, missing: tuple[str, ...]) -> Markup:
    devices = math.prod(plan.mesh.sizes)
    about = f"mesh {plan.mesh}: {counted(devices, 'device', ',')}"
    return head(f"{plan.program} on {plan.machine}", about, told.line, told.answers, missing)


def _assumptions(material: Material) -> Markup:
    blocks: list[Markup | None] = [
        element(
            "p",
            "Prices are models: a roofline per kernel with elementwise chains fused, latency and "
            "bandwidth of every collective on the wires that its axes lie on, liveness of buffers "
            "in program order. They rest on these figures of the machine, per device in SI units:",
        )
    ]
    if material.machine_text is None:
        blocks = [element("p", "The machine's file is not known.")]
    else:
        columns = [
            Column("part"),
            Column("figure", code=True),
            Column("value", code=True),
            Column("source, or why", words=True),
        ]
        rows = [
            (one.table, one.key, one.value, linked(one.source) if one.source else "")
            for one in figures(material.machine_text)
        ]
        rows = [(a, b, linked(c), d) for a, b, c, d in rows]
        blocks.append(table(columns, rows))
    if material.plan.corrections.to_json() != type(material.plan.corrections)().to_json():
        blocks.append(element("p", f"Prices are corrected: {material.plan.corrections.to_json()}"))
    return join(*blocks)


def linked(text: str) -> Markup:
    """Text in which addresses can be clicked."""
    parts = re.split(r"(https?://[^\s\"',;)\]]+)", text)
    return join(
        *(
            element("a", part, href=part, rel="noreferrer") if number % 2 else part
            for number, part in enumerate(parts)
        )
    )


def _versions(plan: Plan) -> Markup:
    rows: list[tuple[str, str | Markup]] = [("program", f"{plan.program} ({plan.fingerprint})")]
    rows += [(name, version) for name, version in versions()]
    return sections.facts(rows)
