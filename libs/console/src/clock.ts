/** The gateway's time, by which ages of its facts are told: a browser's clock may be wrong by hours. */
let ahead_ms = 0;

/** Note the header `Date` of an answer, which has whole seconds. */
export function noteDate(header: string | null): void {
  const at = header ? Date.parse(header) : NaN;
  if (!Number.isNaN(at) && Math.abs(at - (Date.now() + ahead_ms)) > 2000) ahead_ms = at - Date.now();
}

/** Seconds since 1970-01-01 UTC by the gateway's clock. */
export const now_s = (): number => (Date.now() + ahead_ms) / 1000;
