/** A job as far as the page shows it: the parts that were asked for, read again when an event changes them. */
import { Refused, type Schemas } from "./api/http";
import { live } from "./live.svelte";
import { session } from "./session.svelte";

export type Job = Partial<Schemas["JobView"]>;

/** Events that come within it are answered by one request. */
const TOGETHER_MS = 400;
const STALL_MS = 10_000;
/** The part that the past does not have. */
const ONLY_NOW = "shards";
/** How often the gateway may answer from before an event that it has sent: its view is folded beside the stream. */
const TRIES = 5;

export class JobReader {
  job = $state<Job>({});
  error = $state<unknown>();
  loaded = $state(false);
  private wanted = new Set<string>();
  private stale = new Set<string>();
  private tags = new Map<string, string>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly subscriptions: (() => void)[];
  private reading = false;
  private tries = 0;
  /** Sequence of the last event of this job: an answer from before it is asked for again. */
  private eventSeq = 0;

  /** `at`: show the job as it was after the event with this sequence; empty: as it is, and follow it. */
  constructor(
    readonly name: string,
    readonly at = "",
  ) {
    if (at) {
      this.subscriptions = [live.onReturn(() => void this.read())];
      return;
    }
    const stallTimer = setInterval(() => {
      // no event tells that a job stalls
      if (this.job.status === "training" && !document.hidden) this.invalidate(["head"]);
    }, STALL_MS);
    this.subscriptions = [
      live.subscribe((event, parts) => {
        if (event.job !== name) return;
        this.eventSeq = event.seq;
        this.invalidate(parts.filter((part) => this.wanted.has(part)));
      }),
      live.onReturn(() => this.invalidate([...this.wanted])),
      () => clearInterval(stallTimer),
    ];
  }

  /** Read these parts now, and again whenever they change. */
  want(parts: readonly string[]): void {
    const fresh = parts.filter((part) => !this.wanted.has(part) && !(this.at && part === ONLY_NOW));
    for (const part of fresh) this.wanted.add(part);
    for (const part of fresh) this.stale.add(part);
    void this.read();
  }

  close(): void {
    for (const end of this.subscriptions) end();
    clearTimeout(this.timer);
  }

  private invalidate(parts: readonly string[]): void {
    for (const part of parts) this.stale.add(part);
    this.later();
  }

  private later(): void {
    if (!this.stale.size || this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      void this.read();
    }, TOGETHER_MS);
  }

  /** Read what is stale. One request at a time, so that no old answer replaces a new one. */
  private async read(): Promise<void> {
    if (this.reading || !this.stale.size) return;
    this.reading = true;
    const [parts, seq] = [[...this.stale].sort(), this.eventSeq];
    this.stale.clear();
    const key = parts.join();
    try {
      const path = `/jobs/${encodeURIComponent(this.name)}/parts`;
      // the head depends on the time, too: a job stalls without an event
      const tag = parts.includes("head") ? "" : (this.tags.get(key) ?? "");
      const changed = await session.http.getChanged<Job>(path, { part: parts, at: this.at || undefined }, tag);
      if (changed) {
        this.tags.set(key, changed.tag);
        this.job = { ...this.job, ...changed.body };
      }
      if ((this.job.last_seq ?? 0) < seq && this.tries++ < TRIES) for (const part of parts) this.stale.add(part);
      else this.tries = 0;
      this.error = undefined;
      this.loaded = true;
    } catch (error) {
      this.error = error;
      if (!(error instanceof Refused) || error.status >= 500) for (const part of parts) this.stale.add(part);
    }
    this.reading = false;
    this.later();
  }
}
