/** The plans of a decision as points of a chart: the chosen one, the one before, and all that were considered. */
import type { Schemas } from "../api/http";

type Plan = Schemas["Plan"];
export interface Point {
  /** Names the plan in the address. */
  code: string;
  kind: "chosen" | "before" | "front" | "considered";
  /** Identifier of the candidate, if it is one. */
  id?: string;
  plan: Plan;
  cost: number;
  throughput: number;
  interval?: Schemas["Interval"];
  gain?: number;
  overhead_s?: number;
  whyNot?: string;
}

const MIB = 2 ** 20;

/** "3-1-0.5-0.5-2048-128": workers, servers, cores of each, MiB of each; "-gpu-a:2": of the workers, those on devices */
export const codeOf = (plan: Plan): string =>
  [plan.workers, plan.ps, plan.worker_cpu_cores, plan.ps_cpu_cores, plan.worker_memory_bytes / MIB, plan.ps_memory_bytes / MIB]
    .map((value) => String(Number(value.toFixed(2))))
    .concat((plan.groups ?? []).map((group) => `${group.device}:${group.workers}`))
    .join("-");

/** Return the points of a decision, cheapest first. */
export function pointsOf(decision: Schemas["Decision"]): Point[] {
  const points = new Map<string, Point>();
  for (const one of decision.front?.candidates ?? []) {
    const code = codeOf(one.plan);
    points.set(code, {
      code,
      kind: "front",
      id: one.id,
      plan: one.plan,
      cost: one.cost_per_hour,
      throughput: one.throughput,
      interval: one.throughput_interval,
      gain: one.gain,
      overhead_s: one.overhead_s,
    });
  }
  const put = (plan: Plan, kind: Point["kind"], cost: number | undefined, throughput: number | null, more: Partial<Point> = {}) => {
    const code = codeOf(plan);
    const known = points.get(code);
    if (known) points.set(code, { ...known, ...more, ...(kind === "considered" ? {} : { kind }) });
    else if (cost !== undefined && throughput !== null) points.set(code, { code, kind, plan, cost, throughput, ...more });
  };
  for (const one of decision.alternatives) put(one.plan, "considered", one.cost_per_hour, one.throughput, { whyNot: one.why_not });
  if (decision.previous) put(decision.previous, "before", decision.cost_before ?? undefined, decision.throughput_before);
  const interval = decision.throughput_interval ? { interval: decision.throughput_interval } : {};
  put(decision.plan, "chosen", decision.cost_per_hour, decision.throughput, interval);
  return [...points.values()].sort((one, other) => one.cost - other.cost || one.throughput - other.throughput);
}
