/** Server-sent events by `fetch`, since `EventSource` cannot send the bearer token. Resumes by `Last-Event-ID`. */
import { type Http, Refused, url } from "./http";

export interface StreamedEvent {
  seq: number;
  time_s: number;
  event: string;
  job: string;
  data: Record<string, unknown>;
}

const RETRY_MS = [250, 500, 1000, 2000];
/** Longer than any interval between the comments that the gateway sends; then the connection is dead. */
const SILENT_MS = 320_000;

export interface Listener {
  event(event: StreamedEvent): void;
  /** Called with false when the stream breaks, and with true once it is open (again). */
  connected(is: boolean): void;
}

/** Follow the events after sequence `after` until `signal` aborts. Never throws; a refusal other than 401 is retried. */
export async function follow(http: Http, after: number, listener: Listener, signal: AbortSignal): Promise<void> {
  let last = after;
  let failures = 0;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener("abort", stop);
    try {
      const response = await http.send(url("/events", { after: last }), {
        headers: { Accept: "text/event-stream", "Last-Event-ID": String(last) },
        signal: attempt.signal,
      });
      listener.connected(true);
      for await (const event of frames(response, attempt)) {
        failures = 0;
        last = event.seq;
        listener.event(event);
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return;
    } finally {
      signal.removeEventListener("abort", stop);
    }
    if (signal.aborted) return;
    listener.connected(false);
    await pause(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]!, signal);
  }
}

async function* frames(response: Response, attempt: AbortController): AsyncGenerator<StreamedEvent> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let watchdog = setTimeout(() => attempt.abort(), SILENT_MS);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(() => attempt.abort(), SILENT_MS);
      const blocks = (text + value).split("\n\n");
      text = blocks.pop()!;
      for (const block of blocks) {
        const data = block
          .split("\n")
          .filter((line) => line.startsWith("data: "))
          .map((line) => line.slice(6))
          .join("\n");
        if (data) yield JSON.parse(data) as StreamedEvent;
      }
    }
  } finally {
    clearTimeout(watchdog);
    await reader.cancel().catch(() => undefined);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
