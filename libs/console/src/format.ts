/** Numbers as people read them; each with its unit. */
export const NONE = "–";

const SI = ["", "k", "M", "G", "T"];

/** 41230 -> "41.2k" */
export function count(value: number | null | undefined): string {
  if (value == null) return NONE;
  let scaled = value;
  let step = 0;
  while (Math.abs(scaled) >= 999.5 && step < SI.length - 1) {
    scaled /= 1000;
    step += 1;
  }
  return step === 0 && Number.isInteger(value) ? String(value) : scaled.toPrecision(3) + SI[step];
}

/** Exact, with thousands separated: 45,840,617 */
export const exactly = (value: number): string => value.toLocaleString("en-GB");

export const rate = (perS: number | null | undefined): string => (perS == null ? NONE : `${count(perS)}/s`);

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number | null | undefined): string {
  if (value == null) return NONE;
  let scaled = value;
  let step = 0;
  while (scaled >= 1024 && step < BYTES.length - 1) {
    scaled /= 1024;
    step += 1;
  }
  return `${step === 0 || scaled >= 100 ? Math.round(scaled) : scaled.toFixed(1)} ${BYTES[step]}`;
}

export const cores = (value: number): string => `${Number(value.toFixed(2))} ${value === 1 ? "core" : "cores"}`;

export const percent = (share: number | null | undefined, digits = 0): string =>
  share == null ? NONE : `${(100 * share).toFixed(digits)} %`;

/** So that a small share does not look like none: 0.006 -> "0.6 %" */
export const smallShare = (share: number): string => (share < 0.001 ? "<0.1 %" : percent(share, share < 0.01 ? 1 : 0));

/** 3725 -> "1 h 2 min" */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null) return NONE;
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}

/** 3725 -> "1:02:05", for axes */
export function elapsed(seconds: number): string {
  const whole = Math.round(seconds);
  const [minutes, rest] = [Math.floor(whole / 60), String(whole % 60).padStart(2, "0")];
  return minutes < 60 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

/** Time of day, with the date if it is another day's. */
export function time(seconds: number | null | undefined, now = Date.now()): string {
  if (seconds == null) return NONE;
  const at = new Date(1000 * seconds);
  const clock = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date(now).toDateString() ? clock : `${at.toLocaleDateString("en-GB")} ${clock}`;
}

export const money = (perHour: number | null | undefined): string => (perHour == null ? NONE : `${amount(perHour)}/h`);

/** An amount in the currency of a job's prices, with three digits: 0.0123 */
export const amount = (value: number | null | undefined): string =>
  value == null ? NONE : Math.abs(value) < 1000 ? String(Number(value.toPrecision(3))) : exactly(Math.round(value));

/** Measures of a model: "log loss 0.5132, AUC 0.7854" */
export const measures = (found: readonly { name: string; value: number }[] | undefined): string =>
  (found ?? []).map((one) => `${one.name} ${one.value.toFixed(4)}`).join(", ") || NONE;

/** "6 workers, 2 of them on gpu-a, 3 servers" */
export function plan(
  plan: { workers: number; ps: number; groups?: { device: string; workers: number; stage?: number }[] } | null | undefined,
): string {
  if (!plan) return NONE;
  const groups = (plan.groups ?? []).map(
    (group) => `, ${group.workers} of them${group.stage ? ` of stage ${group.stage}` : ""} on ${group.device}`,
  );
  const workers = `${plan.workers} ${plan.workers === 1 ? "worker" : "workers"}${groups.join("")}`;
  return `${workers}, ${plan.ps} ${plan.ps === 1 ? "server" : "servers"}`;
}
