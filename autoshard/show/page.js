// Tables of class "sorts": a click on a heading sorts the rows by it, a second click turns them.
for (const table of document.querySelectorAll(".autoshard table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const number = head.classList.contains("number");
    const now = head.getAttribute("aria-sort");
    const down = now ? now === "ascending" : number;
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      return number ? Number(cell.dataset.order ?? "-Infinity") : cell.textContent;
    };
    const order = (a, b) => (number ? a - b : a.localeCompare(b));
    const rows = [...body.rows].sort((a, b) => order(key(a), key(b)) * (down ? -1 : 1));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }));
}
