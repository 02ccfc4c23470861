/** A narrow page has no room for the heads of columns: each cell names its own (style.css). */
const NARROW = matchMedia("(max-width: 640px)");

export function labelled(page: HTMLElement): { destroy(): void } {
  const label = () => {
    if (!NARROW.matches) return;
    for (const table of page.querySelectorAll("table")) {
      const heads = [...(table.tHead?.rows[0]?.cells ?? [])].map((head) => (head.textContent ?? "").replace(/ [↓↑]$/, ""));
      for (const row of table.tBodies[0]?.rows ?? [])
        for (const [at, cell] of [...row.cells].entries())
          if (heads[at] && cell.dataset.label !== heads[at]) cell.dataset.label = heads[at];
    }
  };
  const changes = new MutationObserver(label);
  changes.observe(page, { childList: true, subtree: true });
  NARROW.addEventListener("change", label);
  label();
  return {
    destroy: () => {
      changes.disconnect();
      NARROW.removeEventListener("change", label);
    },
  };
}
