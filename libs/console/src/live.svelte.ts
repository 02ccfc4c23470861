/** One stream of events per visible tab. An event says which parts of which job to read again; it carries no state. */
import type { Schemas } from "./api/http";
import { follow, type StreamedEvent } from "./api/stream";
import { session } from "./session.svelte";

type Reader = (event: StreamedEvent, parts: readonly string[]) => void;

const CATCHING_UP_MS = 1000;
const HIDDEN_MS = 30_000;
/** Tabs tell each other when one is looked at: a browser opens six connections to a host, and streams hold them. */
const TABS = new BroadcastChannel("stretto.visible");
/** A break shorter than this is not worth a word. */
const BREAK_MS = 3000;

class Live {
  /** False once the stream has been broken for three seconds. */
  connected = $state(true);
  seq = $state(0);
  private parts: Record<string, string[]> = {};
  private readers = new Set<Reader>();
  private returns = new Set<() => void>();
  private stream: AbortController | undefined;
  private hiding: ReturnType<typeof setTimeout> | undefined;
  private breaking: ReturnType<typeof setTimeout> | undefined;

  /** True once the place is known from which on no event is missed: what a page reads then is not older. */
  ready = $state(false);
  private generation = 0;

  /** Open the stream, from the present on, until `end`. */
  async begin(): Promise<void> {
    const generation = ++this.generation;
    this.parts = await session.http.get<Record<string, string[]>>("/schema/parts");
    await this.seek();
    if (generation !== this.generation) return;
    this.ready = true;
    document.addEventListener("visibilitychange", this.look);
    TABS.onmessage = () => document.hidden && this.close();
    if (!document.hidden) this.open();
  }

  /** Wait until the gateway has read all events that are stored, and begin behind them. */
  private async seek(): Promise<void> {
    for (;;) {
      const status = await session.http.get<Schemas["GatewayStatus"]>("/status");
      this.seq = status.last_seq;
      if (status.ready) return;
      await new Promise((resolve) => setTimeout(resolve, CATCHING_UP_MS));
    }
  }

  end(): void {
    this.generation += 1;
    this.ready = false;
    document.removeEventListener("visibilitychange", this.look);
    TABS.onmessage = null;
    this.close();
  }

  /** Call `reader` for each event until the returned function is called. */
  subscribe(reader: Reader): () => void {
    this.readers.add(reader);
    return () => this.readers.delete(reader);
  }

  /** Call `read` whenever events may have been missed, until the returned function is called. */
  onReturn(read: () => void): () => void {
    this.returns.add(read);
    return () => this.returns.delete(read);
  }

  /** Call `read` when an event may change the head of a job, once in `everyMs` at most, and when events may have been missed. */
  keepCurrent(read: () => void, everyMs: number): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ends = [
      this.subscribe((_, parts) => {
        if (!parts.includes("head")) return;
        timer ??= setTimeout(() => {
          timer = undefined;
          read();
        }, everyMs);
      }),
      this.onReturn(read),
    ];
    return () => {
      for (const end of ends) end();
      clearTimeout(timer);
    };
  }

  private look = (): void => {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.close(), HIDDEN_MS);
    else if (!this.stream) void this.comeBack();
  };

  /** Go on from the present after a while: what happened meanwhile is read, not streamed. */
  private async comeBack(): Promise<void> {
    try {
      await this.seek();
    } catch {
      // the stream tells that the gateway is away
    }
    if (this.stream || !this.ready) return;
    this.open();
    for (const read of this.returns) read();
  }

  private open(): void {
    TABS.postMessage("visible");
    this.stream = new AbortController();
    const connected = (is: boolean) => {
      if (!is) this.breaking ??= setTimeout(() => (this.connected = false), BREAK_MS);
      else {
        clearTimeout(this.breaking);
        this.breaking = undefined;
        if (!this.connected) for (const read of this.returns) read(); // it may have answered from before the break
        this.connected = true;
      }
    };
    void follow(session.http, this.seq, { event: (event) => this.dispatch(event), connected }, this.stream.signal);
  }

  private close(): void {
    this.stream?.abort();
    this.stream = undefined;
  }

  private dispatch(event: StreamedEvent): void {
    this.seq = event.seq;
    for (const reader of this.readers) reader(event, this.parts[event.event] ?? []);
  }
}

export const live = new Live();
