/** A job as far as the page shows it: the parts that were asked for, read again when an event changes them. */
import type { Schemas } from "./api/http";
import { live } from "./live.svelte";
import { session } from "./session.svelte";

export type Job = Partial<Schemas["JobView"]>;

/** Events that come within it are answered by one request. */
const TOGETHER_MS = 400;

export class JobReader {
  job = $state<Job>({});
  error = $state<unknown>();
  loaded = $state(false);
  private wanted = new Set<string>();
  private stale = new Set<string>();
  private tags = new Map<string, string>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly unsubscribe: () => void;

  constructor(readonly name: string) {
    this.unsubscribe = live.subscribe((event, parts) => {
      if (event.job === name) this.invalidate(parts.filter((part) => this.wanted.has(part)));
    });
  }

  /** Read these parts now, and again whenever they change. */
  want(parts: readonly string[]): void {
    const fresh = parts.filter((part) => !this.wanted.has(part));
    for (const part of fresh) this.wanted.add(part);
    if (fresh.length) void this.read(fresh);
  }

  close(): void {
    this.unsubscribe();
    clearTimeout(this.timer);
  }

  private invalidate(parts: readonly string[]): void {
    for (const part of parts) this.stale.add(part);
    if (!this.stale.size || this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      const now = [...this.stale];
      this.stale.clear();
      void this.read(now);
    }, TOGETHER_MS);
  }

  private async read(parts: readonly string[]): Promise<void> {
    const key = [...parts].sort().join();
    try {
      const path = `/jobs/${encodeURIComponent(this.name)}/parts`;
      const changed = await session.http.getChanged<Job>(path, { part: parts }, this.tags.get(key) ?? "");
      if (changed) {
        this.tags.set(key, changed.tag);
        this.job = { ...this.job, ...changed.body };
      }
      this.error = undefined;
      this.loaded = true;
    } catch (error) {
      this.error = error;
    }
  }
}
