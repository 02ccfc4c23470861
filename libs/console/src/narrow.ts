/** A narrow page has no room for the heads of columns: each cell names its own, and those without a value go (style.css). */
import { NONE } from "./format";

const NARROW = matchMedia("(max-width: 640px)");

export function labelled(page: HTMLElement): { destroy(): void } {
  const label = () => {
    if (!NARROW.matches) return;
    for (const table of page.querySelectorAll("table")) {
      const heads = [...(table.tHead?.rows[0]?.cells ?? [])].map((head) => (head.textContent ?? "").replace(/ [↓↑]$/, ""));
      for (const row of table.tBodies[0]?.rows ?? [])
        for (const [at, cell] of [...row.cells].entries()) {
          if (heads[at] && cell.dataset.label !== heads[at]) cell.dataset.label = heads[at];
          cell.toggleAttribute("data-empty", cell.textContent === NONE);
        }
    }
  };
  const changes = new MutationObserver(label);
  changes.observe(page, { childList: true, subtree: true, characterData: true });
  NARROW.addEventListener("change", label);
  label();
  return {
    destroy: () => {
      changes.disconnect();
      NARROW.removeEventListener("change", label);
    },
  };
}
