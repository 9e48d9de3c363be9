"""Pages as headless Chromium lays them out: what is clipped, what overlaps, what is hard to read.

All pages stand in frames of one document, each at every width and in both colour schemes, so that
the browser is started once. A script measures each frame and writes what it finds into the title.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

WIDTHS = (1200, 390)
SCHEMES = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CONTRAST = 4.5
"""Of text against its ground, as WCAG 2.2 asks of small text at level AA (1.4.3)."""

SCRIPT = """
const scrolls = (e) => e.closest(".wide, .gantt");
const lit = (text) => text.match(/[\\d.]+/g).map(Number);
const part = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const contrast = (a, b) => {
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
};
function found(frame) {
  const view = frame.contentWindow, page = frame.contentDocument, faults = [];
  const say = (kind, element) =>
    faults.push(`${kind}: ${element.textContent.trim().slice(0, 60)}`);
  const root = page.documentElement;
  for (const one of page.querySelectorAll("details")) one.open = true;
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} wide`);
  for (const box of page.querySelectorAll(".wide"))
    if (box.scrollWidth > box.clientWidth + 1) say(`${box.scrollWidth} wide`, box);
  const texts = [];
  for (const element of page.body.querySelectorAll("*")) {
    if (["SCRIPT", "STYLE", "TITLE"].includes(element.tagName)) continue;
    const own = [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (!own.length) continue;
    const range = page.createRange();
    range.setStart(own[0], 0);
    range.setEnd(own[own.length - 1], own[own.length - 1].data.length);
    const boxes = [...range.getClientRects()].filter((b) => b.width > 0 && b.height > 0);
    if (!boxes.length || view.getComputedStyle(element).visibility === "hidden") continue;
    const box = range.getBoundingClientRect(), inside = scrolls(element);
    if (!inside && (box.right > root.clientWidth + 1 || box.left < -1)) say("beyond", element);
    for (let e = element; e && e !== page.body && !inside; e = e.parentElement) {
      if (view.getComputedStyle(e).overflowX !== "hidden") continue;
      const clip = e.getBoundingClientRect();
      if (box.right > clip.right + 1 || box.left < clip.left - 1) say("clipped", element);
    }
    texts.push({ element, boxes, inside });
    if (element.namespaceURI.endsWith("svg")) continue;
    let ground = element;
    while (ground && lit(view.getComputedStyle(ground).backgroundColor)[3] === 0)
      ground = ground.parentElement;
    const below = ground ? lit(view.getComputedStyle(ground).backgroundColor) : [255, 255, 255];
    if (contrast(lit(view.getComputedStyle(element).color), below) < LEAST) say("faint", element);
  }
  const rows = texts.flatMap((t) => t.boxes.map((box) => ({ ...t, box })));
  rows.sort((a, b) => a.box.top - b.box.top);
  for (let i = 0; i < rows.length; i++)
    for (let j = i + 1; j < rows.length && rows[j].box.top < rows[i].box.bottom - 3; j++) {
      const [a, b] = [rows[i], rows[j]];
      if (a.element === b.element || a.inside !== b.inside) continue;
      if (a.element.contains(b.element) || b.element.contains(a.element)) continue;
      const over = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      if (over > 2) say(`over "${a.element.textContent.trim().slice(0, 30)}"`, b.element);
    }
  return [...new Set(faults)];
}
addEventListener("load", () => {
  const all = {};
  for (const frame of document.querySelectorAll("iframe")) all[frame.name] = found(frame);
  document.body.textContent = "found" + JSON.stringify(all) + "done";
});
"""


def chromium() -> str | None:
    """The browser, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def in_scheme(page: str, scheme: str) -> str:
    """A page that is shown in one colour scheme whatever the reader's is."""
    media = "all" if scheme == "dark" else "not all"
    changed = page.replace("(prefers-color-scheme: dark)", media)
    assert changed != page
    return changed


def frames(pages: Mapping[str, str]) -> str:
    """One document of all pages, at every width and in both schemes, and the script."""
    shown = [
        f'<iframe name="{name} at {width}, {scheme}" style="width: {width}px; height: 900px" '
        f'srcdoc="{html.escape(in_scheme(page, scheme))}"></iframe>'
        for name, page in pages.items()
        for width in WIDTHS
        for scheme in SCHEMES
    ]
    script = SCRIPT.replace("LEAST", str(CONTRAST))
    return f"<!DOCTYPE html><html><body>{''.join(shown)}<script>{script}</script></body></html>"


ATTEMPTS = 3
"""How often a browser is started that ends itself by a signal, as it does on busy machines."""


def faults(browser: str, pages: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """What the browser finds wrong with each page, by page, width and scheme."""
    file = folder / "frames.html"
    file.write_text(frames(pages), encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000"]
    for attempt in range(ATTEMPTS):
        own = [f"--user-data-dir={folder / f'profile{attempt}'}", "--dump-dom", file.as_uri()]
        done = subprocess.run([browser, *words, *own], capture_output=True, text=True, check=False)
        if done.returncode >= 0:
            break  # else a signal ended the browser, and nothing was found
    done.check_returncode()
    said = re.search(r"found(\{.*\})done", done.stdout, flags=re.DOTALL)
    assert said is not None, done.stderr[-2000:]
    return json.loads(html.unescape(said[1]))
