/** The content of an event in words: reasons as they are, other fields by their names, with the units that these have. */
import { bytes, count, duration, plan, rate, time } from "./format";

type Data = Record<string, unknown>;
const MOST = 6;
/** Fields that say nothing to people: the job is known, terms of the model are shown with its decisions. */
const DULL = new Set(["job", "form", "overlap", "log_sd", "covariance", "coefficients", "degrees_of_freedom", "unidentified"]);

function value(name: string, found: unknown): string {
  if (typeof found === "number") {
    if (name.endsWith("_bytes")) return bytes(found);
    if (name.endsWith("_per_s") || name === "throughput") return rate(found);
    if (name.endsWith("_at_s")) return time(found);
    if (name.endsWith("_s")) return duration(found);
    return count(found);
  }
  if (typeof found === "boolean") return found ? "yes" : "no";
  if (typeof found === "string") return found.trim().split("\n").at(-1)!;
  if (Array.isArray(found)) return found.every((one) => typeof one === "string") ? found.join("; ") : `${found.length}`;
  if (found && typeof found === "object") {
    if ("workers" in found && "ps" in found) return plan(found as unknown as { workers: number; ps: number });
    if ("id" in found) return String(found.id);
  }
  return "";
}

/** "pod worker-1, reason failed, exit code 3" */
export function inWords(data: Data): string {
  const entries = Object.entries(data).sort(([one], [other]) => Number(other.startsWith("reason")) - Number(one.startsWith("reason")));
  const told = entries.flatMap(([name, found]) => {
    const said = DULL.has(name) || found == null || found === "" ? "" : value(name, found);
    return said ? [`${name.replace(/_(s|bytes|per_s)$/, "").replaceAll("_", " ")} ${said}`] : [];
  });
  return told.slice(0, MOST).join(", ") || "nothing more";
}
