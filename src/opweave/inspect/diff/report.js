const body = document.querySelector("#operations tbody");
document.querySelectorAll("#operations th").forEach((head, column) => {
  head.firstChild.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") === "descending";
    document.querySelectorAll("#operations th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)], [m, n] = [Number(x), Number(y)];
      const order = Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m === n ? 0 : m - n;
      return (up ? order : -order) || a.dataset.number - b.dataset.number;
    });
    body.append(...rows);
  });
});
document.querySelector("#only").addEventListener("change", (event) => {
  for (const row of body.rows) row.hidden = event.target.checked && row.classList.contains("ok");
});
document.querySelectorAll(".drawing, .along").forEach((box) => {
  const first = box.querySelector("rect.first, .dot.differs, .dot.overflow, .dot.changed");
  if (!first) return;
  const [at, around] = [first.getBoundingClientRect(), box.getBoundingClientRect()];
  box.scrollTop += at.top + at.height / 2 - around.top - box.clientHeight / 2;
  box.scrollLeft += at.left + at.width / 2 - around.left - box.clientWidth / 2;
});
