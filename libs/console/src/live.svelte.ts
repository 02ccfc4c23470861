/** One stream of events per visible tab. An event says which parts of which job to read again; it carries no state. */
import type { Schemas } from "./api/http";
import { follow, type StreamedEvent } from "./api/stream";
import { session } from "./session.svelte";

export type Part = Exclude<keyof Schemas["JobParts"], "name" | "last_seq"> | string;
type Reader = (event: StreamedEvent, parts: readonly string[]) => void;

const HIDDEN_MS = 30_000;
/** A break shorter than this is not worth a word. */
const BREAK_MS = 3000;

class Live {
  /** False once the stream has been broken for three seconds. */
  connected = $state(true);
  seq = $state(0);
  private parts: Record<string, string[]> = {};
  private readers = new Set<Reader>();
  private stream: AbortController | undefined;
  private hiding: ReturnType<typeof setTimeout> | undefined;
  private breaking: ReturnType<typeof setTimeout> | undefined;

  /** Open the stream, from the present on, until `end`. */
  async begin(): Promise<void> {
    this.parts = await session.http.get<Record<string, string[]>>("/schema/parts");
    this.seq = (await session.http.get<Schemas["GatewayStatus"]>("/status")).last_seq;
    document.addEventListener("visibilitychange", this.look);
    this.open();
  }

  end(): void {
    document.removeEventListener("visibilitychange", this.look);
    this.close();
  }

  /** Call `reader` for each event until the returned function is called. */
  subscribe(reader: Reader): () => void {
    this.readers.add(reader);
    return () => this.readers.delete(reader);
  }

  private look = (): void => {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.close(), HIDDEN_MS);
    else if (!this.stream) this.open();
  };

  private open(): void {
    this.stream = new AbortController();
    const connected = (is: boolean) => {
      if (!is) this.breaking ??= setTimeout(() => (this.connected = false), BREAK_MS);
      else {
        clearTimeout(this.breaking);
        this.breaking = undefined;
        this.connected = true;
      }
    };
    void follow(session.http, this.seq, { event: (event) => this.told(event), connected }, this.stream.signal);
  }

  private close(): void {
    this.stream?.abort();
    this.stream = undefined;
  }

  private told(event: StreamedEvent): void {
    this.seq = event.seq;
    for (const reader of this.readers) reader(event, this.parts[event.event] ?? []);
  }
}

export const live = new Live();
