/** The address of the page, which holds all state that a link should carry: page, job, tab, filters. */
/** The console's own path: that of its script's folder, since a proxy may put the gateway below a path. */
const BASE = new URL(/* @vite-ignore */ "..", import.meta.url).pathname.replace(/\/$/, "");
/** The gateway's path, which is that of the console less its last segment. */
export const GATEWAY = BASE.slice(0, BASE.lastIndexOf("/"));

class Route {
  path = $state(BASE);
  query = $state(new URLSearchParams());

  constructor() {
    this.read();
    addEventListener("popstate", () => this.read());
  }

  /** Segments after /console, e.g. ["jobs", "ads-11-22", "decisions"]. */
  get segments(): string[] {
    return this.path.slice(BASE.length).split("/").filter(Boolean).map(decoded);
  }

  go(address: string): void {
    history.pushState(null, "", address);
    this.read();
    scrollTo(0, 0);
  }

  /** This address with other parameters; an empty value removes one. */
  with(values: Record<string, string>): string {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(values)) value ? query.set(name, value) : query.delete(name);
    return this.path + (query.size ? `?${query}` : "");
  }

  /** Set parameters of the address in place; an empty value removes one. */
  set(values: Record<string, string>): void {
    history.replaceState(null, "", this.with(values));
    this.read();
  }

  private read(): void {
    this.path = location.pathname;
    this.query = new URLSearchParams(location.search);
  }
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export const route = new Route();

export const to = (...segments: string[]): string => [BASE, ...segments.map(encodeURIComponent)].join("/");

/** The address of a page with parameters; empty ones are left out. */
export function withQuery(address: string, values: Record<string, string | number>): string {
  const query = new URLSearchParams(Object.entries(values).flatMap(([name, value]) => (value === "" ? [] : [[name, String(value)]])));
  return query.size ? `${address}?${query}` : address;
}

/** Let a click on a link to a page of ours change the address without loading anything. */
export function follow(event: MouseEvent): void {
  const link = (event.target as Element).closest?.("a");
  if (!link || link.target || link.origin !== location.origin || !link.pathname.startsWith(BASE)) return;
  if (link.pathname.startsWith(`${BASE}/docs`)) return;
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.defaultPrevented) return;
  if (link.hash && link.pathname === location.pathname) return; // the browser goes there by itself
  event.preventDefault();
  route.go(link.pathname + link.search + link.hash);
}
